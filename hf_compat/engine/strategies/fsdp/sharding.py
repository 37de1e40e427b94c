"""Sharding a model's parameters in place with torch's ``fully_shard``; FSDP units and activation checkpointing."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.errors import HFCompatWarning, TrainerSetupError

__all__ = ["broadcast_from_rank0", "fsdp_units", "reshard", "shard_model"]

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
            warnings.warn(_OTHER_MASKS, HFCompatWarning, stacklevel=2)
    policy: Any = {
        "mesh": mesh,
        "mp_policy": precision,
        # Pinned memory speeds up copies to a GPU, and can only be allocated if there is one.
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda")
        if settings.cpu_offload
        else OffloadPolicy(),
    }
    upcast = precision.param_dtype is not None
    for unit in fsdp_units(model, settings):
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
