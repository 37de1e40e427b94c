"""From a model and the FSDP settings to parameters that are sharded in place by torch's ``fully_shard``."""

from __future__ import annotations

import functools
import inspect
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
from hf_compat.errors import TrainerSetupError

__all__ = ["reshard", "shard_model", "take_from_first", "units_of"]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called, so nothing could gather their parameters in time."""


def shard_model(
    model: nn.Module, settings: FsdpSettings, *, mesh: DeviceMesh, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Make ``model``'s parameters DTensors of which each process holds a part; its weights are those of process 0.

    Unit by unit, so that a rank holds at most one unit beyond its part on ``device``. Every rank calls it.

    Args:
        model: The model. On ranks other than 0 only shapes and dtypes matter; it may be on any device, meta too.
        settings: What a unit is, when it is gathered and where it is kept.
        mesh: The ranks to shard over.
        device: Where this rank computes.
        dtype: Of mixed precision: what units are gathered and gradients reduced in. Weights in training become
            float32 then. None: everything in the parameters' own.

    Raises:
        TrainerSetupError: If a class of layers that the settings name is not in the model.
    """
    if settings.activation_checkpointing:
        checkpoint_activations(model, layers_of(model, settings.layer_classes))
    policy: Any = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype),
        # Pages that cannot be swapped make copies to a GPU quick; without one there is nobody to pin them.
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda")
        if settings.cpu_offload
        else OffloadPolicy(),
    }
    for unit in units_of(model, settings):
        take_from_first(unit, device, upcast=dtype is not None)
        fully_shard(unit, reshard_after_forward=settings.reshards_after_forward, **policy)
    take_from_first(model, device, upcast=dtype is not None)
    # The root's own parameters are needed last in the forward pass and first in the backward pass.
    fully_shard(model, reshard_after_forward=False, **policy)


def reshard(model: nn.Module) -> None:
    """Free what is gathered of ``model``, so that ``parameters()`` are each process's part again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def units_of(model: nn.Module, settings: FsdpSettings) -> list[nn.Module]:
    """Return the FSDP units of ``model``, submodules that are gathered on their own, inner ones first.

    A module that shares a parameter with the rest of the model is none.

    Raises:
        TrainerSetupError: If a class of layers that the settings name is not in the model.
    """
    if settings.wrapping == "none":
        return []
    if settings.wrapping == "transformer":
        chosen = layers_of(model, settings.layer_classes)
    else:
        chosen = list(_modules_by_size(model, settings.min_num_params, Counter()))
    holders = _holders(model)
    return [unit for unit in chosen if unit is not model and _is_closed(unit, holders)]


def layers_of(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    found = dict.fromkeys(names, False)
    wanted = set(names) or set(getattr(model, "_no_split_modules", None) or ())
    layers = []
    for module in reversed(list(model.modules())):  # the last first, so inner ones before those around them
        matching = wanted & {cls.__name__ for cls in type(module).__mro__}
        if matching:
            layers.append(module)
            found.update(dict.fromkeys(matching, True))
    missing = [name for name in names if not found[name]]
    if missing:
        raise TrainerSetupError(
            f"`fsdp_config`: `transformer_layer_cls_to_wrap` names {', '.join(missing)}, but {type(model).__name__} "
            "has no such module. Name classes of its layers, or leave it out."
        )
    return layers


def _modules_by_size(module: nn.Module, least: int, taken: Counter[int]) -> Iterator[nn.Module]:
    """Yield modules with ``least`` parameters or more that are in no module yielded before, inner ones first."""
    # Of this one the inner modules are not called, their weights are used.
    children = () if isinstance(module, nn.MultiheadAttention) else module.children()
    for child in children:
        yield from _modules_by_size(child, least, taken)
    rest = [parameter for parameter in module.parameters() if id(parameter) not in taken]
    if not isinstance(module, _CONTAINERS) and sum(parameter.numel() for parameter in rest) >= max(least, 1):
        taken.update(map(id, rest))
        yield module


def _holders(module: nn.Module) -> Counter[int]:
    """Return how often each parameter, by its id, is registered in ``module``."""
    parts = (part._parameters.values() for part in module.modules())
    return Counter(id(parameter) for held in parts for parameter in held if parameter is not None)


def _is_closed(unit: nn.Module, holders: Counter[int]) -> bool:
    return all(holders[name] == count for name, count in _holders(unit).items())


def take_from_first(unit: nn.Module, device: torch.device, *, upcast: bool) -> None:
    """Give ``unit``'s parameters and buffers that are whole the values of process 0, on ``device``."""
    taken: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor itself, so that its id is not given away
    for module in unit.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if id(tensor) not in taken:
                    taken[id(tensor)] = (tensor, _from_first(tensor, device, upcast=upcast and tensor.requires_grad))
                held[name] = taken[id(tensor)][1]


def _from_first(tensor: Tensor, device: torch.device, *, upcast: bool) -> Tensor:
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


def checkpoint_activations(model: nn.Module, layers: list[nn.Module]) -> None:
    """Have ``layers`` compute their activations again in the backward pass; names in the model stay as they are."""
    if not layers:
        raise TrainerSetupError(
            f"`fsdp_config`: `activation_checkpointing` finds no layers in {type(model).__name__}; name their classes "
            "in `transformer_layer_cls_to_wrap`."
        )
    for layer in layers:
        _compute_again(layer)
    if "use_cache" in inspect.signature(model.forward).parameters:
        model.register_forward_pre_hook(_leave_cache_out, with_kwargs=True)


def _compute_again(layer: Any) -> None:
    forward = layer.forward

    @functools.wraps(forward)
    def in_two_passes(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    layer.forward = in_two_passes


def _leave_cache_out(model: nn.Module, given: Any, named: dict[str, Any]) -> Any:
    """Leave keys and values of a training step uncached: the second pass would append them once more."""
    return (given, {**named, "use_cache": False}) if model.training else None
