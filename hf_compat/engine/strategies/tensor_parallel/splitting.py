"""From a model's plan of tensor parallelism to matrices that are split over processes, by torch's styles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from hf_compat.errors import ModelError

__all__ = ["STYLES", "check_plan", "is_split", "split_model"]


def _of_heads() -> ParallelStyle:
    """Return the style of a module that each process calls with its heads: its gradient is the sum over all."""
    # Which axis the ranks' states are parts of does not matter but for the last, along which norms are taken.
    return SequenceParallel(sequence_dim=0, use_local_output=True)


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "replicated_with_grad_allreduce": _of_heads,
}
"""Style by its name in a plan to torch's class; each leaves inputs and outputs plain tensors."""
_WHOLE = ("replicate",)
"""Styles of modules that every process holds whole, and calls with the same values."""
_SPLIT_AXIS = {ColwiseParallel: Shard(0), RowwiseParallel: Shard(1)}
"""Torch's class to the axis of a linear layer's weight that it splits; of an embedding's it is the other one."""


def is_split(model: nn.Module) -> bool:
    """Return whether processes hold parts of ``model``'s parameters already."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters()) or (
        (getattr(model, "_tp_size", None) or 1) > 1
    )


def check_plan(model: nn.Module, size: int) -> None:
    """Refuse a ``model`` that cannot be split over ``size`` processes; one that a Trainer has split so is right.

    Raises:
        ModelError: If it has no plan, one that names what it has not or what is not supported, or odd sizes; or if it
            is split already by anyone else.
    """
    name = type(model).__name__
    if (getattr(model, "_tp_size", None) or 1) > 1 or (size > 1 and is_split(model) and not _is_ours(model, size)):
        raise ModelError(
            f"`model`: {name} is split or sharded already, by `from_pretrained(tp_plan=...)` perhaps. Load it without: "
            "the Trainer splits it by the same plan if `parallelism_config={'tp_size': ...}` is set."
        )
    if size == 1 or is_split(model):
        return
    chosen = _chosen(model)
    if not chosen:
        raise ModelError(
            f"`model`: {name} has no plan of tensor parallelism for any of its modules. Give it one, "
            "`model.tp_plan = {'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}`, or train it without `tp_size`."
        )
    problems = [*_heads_that_do_not_divide(model, size), *_unsplittable(chosen, size), *_undecided(model, chosen)]
    if problems:
        raise ModelError(f"`model`: {name} cannot be split over {size} processes: {'; '.join(problems)}.")


def split_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Make the matrices that ``model``'s plan names DTensors over ``mesh``, in place; nothing is exchanged.

    A matrix that two modules share, such as tied embeddings, stays whole on every rank.

    Args:
        model: Whole, and the same on every rank.
        mesh: The ranks that see the same batches.

    Raises:
        ModelError: If it cannot be split.
    """
    check_plan(model, mesh.size())
    plan: dict[str, Any] = {name: STYLES[style]() for name, (_, style) in _chosen(model).items()}
    parallelize_module(model, mesh, plan, src_data_rank=None)


def _is_ours(model: nn.Module, size: int) -> bool:
    meshes = {item.device_mesh for item in model.parameters() if isinstance(item, DTensor)}
    grids = [dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)) for mesh in meshes]
    return any(grid.get("tensor_parallel") == size for grid in grids)


def _plan_of(model: Any) -> dict[str, str]:
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    if not isinstance(plan, Mapping):
        raise ModelError(f"`model.tp_plan={plan!r}`: has to be a dict of name patterns to styles.")
    return dict(plan)


def _chosen(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the modules that are split by their names, with their styles; those that share a matrix are not."""
    rows = [(re.compile(re.escape(name).replace(r"\*", r"[^.]+")), style) for name, style in _plan_of(model).items()]
    found: dict[str, tuple[nn.Module, str]] = {}
    for name, module in model.named_modules():
        style = next((style for pattern, style in rows if pattern.fullmatch(name)), None)
        if style is not None and style not in _WHOLE:
            found[name] = (module, style)
    held = Counter(id(parameter) for part in model.modules() for parameter in part._parameters.values())
    shared = {name for name, (module, _) in found.items() if any(held[id(item)] > 1 for item in module.parameters())}
    return {name: row for name, row in found.items() if name not in shared}


def _heads_that_do_not_divide(model: Any, size: int) -> Iterator[str]:
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count % size:
            yield f"`config.{name}={count}` is not a multiple of it"


def _unsplittable(chosen: Mapping[str, tuple[nn.Module, str]], size: int) -> Iterator[str]:
    for name, (module, style) in chosen.items():
        if style not in STYLES:
            yield f"the style {style!r} of `{name}` is not supported, only {', '.join((*STYLES, *_WHOLE))}"
            continue
        placement = _SPLIT_AXIS.get(type(STYLES[style]()))
        if placement is None:
            continue
        if not isinstance(module, nn.Linear | nn.Embedding):
            yield f"`{name}` is a {type(module).__name__}, and only `Linear` and `Embedding` can be split"
            continue
        axis = placement.dim if isinstance(module, nn.Linear) else 1 - placement.dim
        length = module.weight.shape[axis]
        if length % size:
            yield f"`{name}.weight` has {length} {'columns' if axis else 'rows'}, which is not a multiple of it"


def _undecided(model: nn.Module, chosen: Mapping[str, tuple[nn.Module, str]]) -> Iterator[str]:
    """Tell of parameters beside split matrices: their gradients are sums or not, as only a plan can say."""
    styles: dict[str, set[str]] = {}
    for name, (_, style) in chosen.items():
        styles.setdefault(name.rpartition(".")[0], set()).add(style)
    for parent, found in styles.items():
        if not {"colwise", "rowwise"} <= found:
            continue
        block = model.get_submodule(parent)
        for name, _ in block.named_parameters():
            path = f"{parent}.{name}" if parent else name
            if not any(path.startswith(f"{split}.") for split in chosen):
                yield (
                    f"`{path}` is used between matrices that are split, and the plan does not say how; add a row, such "
                    "as 'replicated_with_grad_allreduce' for a norm of each head"
                )
