"""Splitting a model's parameters in place: sharded by torch's ``fully_shard``, and by a tensor-parallel plan."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.engine.rank_mesh import TENSOR_PARALLEL
from hf_compat.errors import ModelError, TrainerSetupError, warn_user
from hf_compat.model_facts import indivisible_heads

# Sharding a model's parameters in place with torch's `fully_shard`; FSDP units and activation checkpointing.


_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called, so that FSDP would never gather their parameters."""
_OTHER_MASKS = (
    "`fsdp_config={'activation_checkpointing': True}`: with FSDP 2 transformers computes layers again with other "
    "dropout masks, so that gradients are not those of the loss, and so does this run. Set "
    "`TrainingArguments(semantics='corrected')` to keep the masks of the loss."
)


def shard_model(
    model: nn.Module,
    settings: FsdpSettings,
    *,
    mesh: DeviceMesh,
    device: torch.device,
    precision: MixedPrecisionPolicy,
    keeps_masks: bool,
) -> None:
    """Shard ``model``'s parameters over ``mesh`` as DTensors, with the values of rank 0; every rank calls it.

    It shards unit by unit, so that ``device`` holds at most one full unit besides the shards.

    Args:
        model: The model, on any device, meta included. On ranks other than 0 only shapes and dtypes matter.
        settings: FSDP units, resharding and CPU offload.
        mesh: The ranks to shard over.
        device: The device of this rank.
        precision: Dtypes of gathered parameters, reduced gradients and outputs. If it has one for parameters, trainable
            ones are kept in float32.
        keeps_masks: Whether layers that are computed again have the dropout masks of the first time; accelerate draws
            others.

    Raises:
        TrainerSetupError: If a layer class in the settings is not in the model.
    """
    if settings.activation_checkpointing:
        layers = find_layers(model, settings.layer_classes)
        checkpoint_activations(model, layers, keeps_masks=keeps_masks)
        if not keeps_masks and any(map(_has_dropout, layers)):
            warn_user(_OTHER_MASKS)
    policy: Any = {
        "mesh": mesh,
        "mp_policy": precision,
        # Pinned memory speeds up copies to a GPU, and can only be allocated if there is one.
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda")
        if settings.cpu_offload
        else OffloadPolicy(),
    }
    upcast = precision.param_dtype is not None
    units = fsdp_units(model, settings)
    for unit in [*units, *own_embedding(model, units)]:
        broadcast_from_rank0(unit, device, upcast=upcast)
        fully_shard(unit, reshard_after_forward=settings.reshards_after_forward, **policy)
    broadcast_from_rank0(model, device, upcast=upcast)
    # The root's parameters are used last in the forward pass and first in the backward pass.
    fully_shard(model, reshard_after_forward=False, **policy)


def reshard(model: nn.Module) -> None:
    """Free ``model``'s gathered parameters, so that ``parameters()`` are sharded again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def fsdp_units(model: nn.Module, settings: FsdpSettings) -> list[nn.Module]:
    """Return the FSDP units of ``model``, inner modules first.

    A module that shares a parameter with the rest of the model cannot be a unit.

    Raises:
        TrainerSetupError: If a layer class in the settings is not in the model.
    """
    by_no_size = settings.wrapping == "size" and settings.version == 1 and not settings.min_num_params
    if settings.wrapping == "none" or by_no_size:
        return []
    if settings.wrapping == "transformer":
        chosen = find_layers(model, settings.layer_classes)
    else:
        chosen = list(_modules_by_size(model, settings.min_num_params, Counter()))
    holders = _count_registrations(model)
    return [unit for unit in chosen if unit is not model and _shares_no_parameter(unit, holders)]


def trained_leaves(model: nn.Module) -> list[nn.Module]:
    """Return the modules without children whose weight is trained, which FSDP 1 has as units of a peft model.

    References:
        As the policy with which transformers wraps one, ``fsdp_auto_wrap_policy`` of peft.
    """
    holders = _count_registrations(model)
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    trained = [leaf for leaf in leaves if getattr(getattr(leaf, "weight", None), "requires_grad", False)]
    return [leaf for leaf in trained if _shares_no_parameter(leaf, holders)]


def own_embedding(model: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """Return the input embedding of ``model``, a unit of its own as in accelerate; none if it is tied, or in a unit."""
    find = getattr(model, "get_input_embeddings", None)
    with suppress(NotImplementedError):  # of transformers' models without tokens
        embedding = None if find is None else find()
        inside = {part for unit in units for part in unit.modules()}
        if isinstance(embedding, nn.Module) and embedding not in {model, *inside}:
            return [embedding] if _shares_no_parameter(embedding, _count_registrations(model)) else []
    return []


def find_layers(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    """Return ``model``'s modules of the classes ``names``, by default its ``_no_split_modules``, inner ones first.

    Raises:
        TrainerSetupError: If a class is not in the model.
    """
    found = dict.fromkeys(names, False)
    wanted = set(names) or set(getattr(model, "_no_split_modules", None) or ())
    layers = []
    for module in reversed(list(model.modules())):  # reversed: inner modules before outer ones
        matching = wanted & {cls.__name__ for cls in type(module).__mro__}
        if matching:
            layers.append(module)
            found.update(dict.fromkeys(matching, True))
    missing = [name for name in names if not found[name]]
    if missing:
        raise TrainerSetupError(
            f"`fsdp_config`: `transformer_layer_cls_to_wrap` contains {', '.join(missing)}, but {type(model).__name__} "
            "has no such module. Set it to the classes of its layers, or remove it."
        )
    return layers


def _modules_by_size(module: nn.Module, least: int, taken: Counter[int]) -> Iterator[nn.Module]:
    """Yield modules with at least ``least`` parameters that no module yielded before contains, inner ones first."""
    # nn.MultiheadAttention uses the weights of its submodules without calling them.
    children = () if isinstance(module, nn.MultiheadAttention) else module.children()
    for child in children:
        yield from _modules_by_size(child, least, taken)
    rest = [parameter for parameter in module.parameters() if id(parameter) not in taken]
    if not isinstance(module, _CONTAINERS) and sum(parameter.numel() for parameter in rest) >= max(least, 1):
        taken.update(map(id, rest))
        yield module


def _count_registrations(module: nn.Module) -> Counter[int]:
    """Return how often each parameter, by its id, is registered in ``module``."""
    parts = (part._parameters.values() for part in module.modules())
    return Counter(id(parameter) for held in parts for parameter in held if parameter is not None)


def _shares_no_parameter(unit: nn.Module, holders: Counter[int]) -> bool:
    return all(holders[name] == count for name, count in _count_registrations(unit).items())


def broadcast_from_rank0(unit: nn.Module, device: torch.device, *, upcast: bool) -> None:
    """Move ``unit``'s parameters and buffers that are not sharded yet to ``device``, with the values of rank 0."""
    done: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor itself, whose id must not be reused meanwhile
    for module in unit.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if id(tensor) not in done:
                    values = _broadcast_tensor(tensor, device, upcast=upcast and tensor.requires_grad)
                    done[id(tensor)] = (tensor, values)
                held[name] = done[id(tensor)][1]


def _broadcast_tensor(tensor: Tensor, device: torch.device, *, upcast: bool) -> Tensor:
    if distributed.get_rank() == 0:
        values = tensor.detach().to(device).contiguous()
    else:
        values = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    distributed.broadcast(values, src=0)
    values = values.float() if upcast else values
    if not tensor.is_meta:
        tensor.data = values
        return tensor
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def checkpoint_activations(model: nn.Module, layers: list[nn.Module], *, keeps_masks: bool = True) -> None:
    """Enable activation checkpointing of ``layers``, without changing names in the model.

    Args:
        model: The model.
        layers: Its layers that are computed again.
        keeps_masks: Whether they then have the dropout masks of the first time.

    Raises:
        TrainerSetupError: If there are no layers.
    """
    if not layers:
        raise TrainerSetupError(
            f"`fsdp_config`: `activation_checkpointing` finds no layers in {type(model).__name__}. Set "
            "`transformer_layer_cls_to_wrap` to their classes."
        )
    for layer in layers:
        _checkpoint_forward(layer, keeps_masks)
    if "use_cache" in inspect.signature(model.forward).parameters:
        model.register_forward_pre_hook(_disable_cache, with_kwargs=True)


def _has_dropout(layer: nn.Module) -> bool:
    """Return whether ``layer`` seems to drop values in training: by torch's modules, or by rates such as a Llama's."""
    return any(
        isinstance(rate, float)
        and rate > 0
        and ("drop" in name or (name == "p" and "Dropout" in type(module).__name__))
        for module in layer.modules()
        for name, rate in vars(module).items()
    )


def _checkpoint_forward(layer: nn.Module, keeps_masks: bool) -> None:
    forward = layer.forward

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=keeps_masks, **kwargs)

    layer.forward = checkpointed


def _disable_cache(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Disable the key-value cache in training: recomputing the forward pass would append to it again."""
    return (args, {**kwargs, "use_cache": False}) if model.training else None


# Splitting a model's matrices over ranks by its tensor-parallel plan, with torch's parallel styles.


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
