"""Splitting a model's matrices over ranks by its tensor-parallel plan, with torch's parallel styles."""

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

from hf_compat.engine.parallel_mesh import TENSOR_PARALLEL
from hf_compat.errors import ModelError
from hf_compat.model_facts import indivisible_heads

__all__ = ["STYLES", "check_plan", "is_split", "split_model"]


def _replicated_with_grad_allreduce() -> ParallelStyle:
    """Return the style of a module that each rank calls with its own heads: gradients are summed over the ranks."""
    # The sharded dimension does not matter, as long as it is not the last, over which norms are computed.
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
    "replicated_with_grad_allreduce": _replicated_with_grad_allreduce,
}
"""A style's name in a plan → torch's class; inputs and outputs of each are plain tensors."""
_REPLICATED = ("replicate",)
"""Styles of modules that are replicated and called with the same inputs on every rank."""
_SPLIT_AXIS = {ColwiseParallel: Shard(0), RowwiseParallel: Shard(1)}
"""Torch's class → the dimension of a linear layer's weight that it splits; of an embedding, the other one."""


def is_split(model: nn.Module) -> bool:
    """Return whether ``model``'s parameters are split or sharded already."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters()) or (
        (getattr(model, "_tp_size", None) or 1) > 1
    )


def check_plan(model: nn.Module, size: int) -> None:
    """Check that ``model`` can be split over ``size`` ranks, or has been split so by a Trainer.

    Raises:
        ModelError: If it has no plan, a style is not supported, a size is not a multiple of ``size``, or something
            other than a Trainer has split it.
    """
    name = type(model).__name__
    if (getattr(model, "_tp_size", None) or 1) > 1 or (size > 1 and is_split(model) and not _is_ours(model, size)):
        raise ModelError(
            f"`model`: {name} is split or sharded already, perhaps by `from_pretrained(tp_plan=...)`. Load it without "
            "`tp_plan`: with `parallelism_config={'tp_size': ...}` the Trainer splits it by the same plan."
        )
    if size == 1 or is_split(model):
        return
    planned = _planned_modules(model)
    if not planned:
        raise ModelError(
            f"`model`: {name} has no tensor-parallel plan for any of its modules. Set one, such as "
            "`model.tp_plan = {'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}`, or train without `tp_size`."
        )
    problems = [f"`config.{key}={count}` is not a multiple of {size}" for key, count in indivisible_heads(model, size)]
    problems += _unsplittable_modules(planned, size)
    problems += _unplanned_parameters(model, planned)
    if problems:
        raise ModelError(f"`model`: {name} cannot be split over {size} ranks: {'; '.join(problems)}.")


def split_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Make the matrices in ``model``'s plan DTensors over ``mesh``, in place and without communication.

    A matrix that two modules share, such as tied embeddings, is replicated.

    Args:
        model: The full model, with the same weights on every rank.
        mesh: The tensor-parallel ranks.

    Raises:
        ModelError: If it cannot be split.
    """
    check_plan(model, mesh.size())
    plan: dict[str, Any] = {name: STYLES[style]() for name, (_, style) in _planned_modules(model).items()}
    parallelize_module(model, mesh, plan, src_data_rank=None)


def _is_ours(model: nn.Module, size: int) -> bool:
    meshes = {item.device_mesh for item in model.parameters() if isinstance(item, DTensor)}
    grids = [dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)) for mesh in meshes]
    return any(grid.get(TENSOR_PARALLEL) == size for grid in grids)


def _plan_of(model: nn.Module) -> dict[str, str]:
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    if not isinstance(plan, Mapping):
        raise ModelError(f"`model.tp_plan={plan!r}` is not a dict. Set a dict from name patterns to styles.")
    return dict(plan)


def _planned_modules(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return name → module and style of the modules to split; modules that share a matrix are not split."""
    rows = [(re.compile(re.escape(name).replace(r"\*", r"[^.]+")), style) for name, style in _plan_of(model).items()]
    found: dict[str, tuple[nn.Module, str]] = {}
    for name, module in model.named_modules():
        style = next((style for pattern, style in rows if pattern.fullmatch(name)), None)
        if style is not None and style not in _REPLICATED:
            found[name] = (module, style)
    held = Counter(id(parameter) for part in model.modules() for parameter in part._parameters.values())
    shared = {name for name, (module, _) in found.items() if any(held[id(item)] > 1 for item in module.parameters())}
    return {name: row for name, row in found.items() if name not in shared}


def _unsplittable_modules(planned: Mapping[str, tuple[nn.Module, str]], size: int) -> Iterator[str]:
    for name, (module, style) in planned.items():
        if style not in STYLES:
            yield f"the style {style!r} of `{name}` is not supported, only {', '.join((*STYLES, *_REPLICATED))}"
            continue
        process_layout = _SPLIT_AXIS.get(type(STYLES[style]()))
        if process_layout is None:
            continue
        if not isinstance(module, nn.Linear | nn.Embedding):
            yield f"`{name}` is a {type(module).__name__}, but only `Linear` and `Embedding` can be split"
            continue
        axis = process_layout.dim if isinstance(module, nn.Linear) else 1 - process_layout.dim
        length = module.weight.shape[axis]
        if length % size:
            yield f"`{name}.weight` has {length} {'columns' if axis else 'rows'}, which is not a multiple of {size}"


def _unplanned_parameters(model: nn.Module, planned: Mapping[str, tuple[nn.Module, str]]) -> Iterator[str]:
    """Yield a problem for each parameter between split matrices without a style: is its gradient summed over ranks?"""
    styles: dict[str, set[str]] = {}
    for name, (_, style) in planned.items():
        styles.setdefault(name.rpartition(".")[0], set()).add(style)
    for parent, found in styles.items():
        if not {"colwise", "rowwise"} <= found:
            continue
        block = model.get_submodule(parent)
        for name, _ in block.named_parameters():
            path = f"{parent}.{name}" if parent else name
            if not any(path.startswith(f"{split}.") for split in planned):
                yield (
                    f"`{path}` is used between split matrices, but has no style in the plan; add one, such as "
                    "'replicated_with_grad_allreduce' for a norm of each head"
                )
