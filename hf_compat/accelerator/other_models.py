"""Preparing a model beside the run's own, such as a reference model, and undoing that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hf_compat.engine.moving import devices_of, settle_model
from hf_compat.engine.precision import autocast_forward, without_autocast
from hf_compat.errors import ModelError
from hf_compat.model_facts import is_compiled, unwrap_model

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from hf_compat.distributed.process_state import RunState

__all__ = ["autocast_with", "is_trainable", "prepare_model", "unwrap"]


def autocast_with(handler: Any, context: Callable[[], Any]) -> Any:
    """Return ``context()``, an autocast, with the settings of accelerate's ``AutocastKwargs``, if there are any."""
    autocast = context()
    if handler is None:
        return autocast
    return torch.autocast(
        autocast.device, dtype=autocast.fast_dtype, enabled=handler.enabled, cache_enabled=handler.cache_enabled
    )


def is_trainable(model: nn.Module) -> bool:
    """Return whether ``model`` has trainable parameters."""
    return any(weight.requires_grad for weight in model.parameters())


def prepare_model(
    model: nn.Module,
    state: RunState,
    *,
    autocast: Callable[[], AbstractContextManager[Any]] | None,
    moves: bool | None,
    wraps: bool,
    group: ProcessGroup | None,
) -> nn.Module:
    """Return ``model`` on its device, under autocast, in DDP and compiled, each if the run is.

    Args:
        model: The model; one that is prepared already, by accelerate too, is returned as it is.
        state: Device, ranks and compilation.
        autocast: Returns the autocast of a forward pass, whose outputs are then cast to float32; None without.
        moves: Whether the model is moved to the device. Default: unless FSDP or DTensors place it.
        wraps: Whether a trainable model is wrapped in DDP.
        group: The data-parallel ranks. Default: all.

    Raises:
        ModelError: If the model is spread over several devices and there are several ranks.

    References:
        As accelerate ``accelerator.py`` ``prepare_model``.
    """
    if getattr(model, "_is_accelerate_prepared", False):
        return model
    spread = any(len(devices_of(module)) > 1 for module in model.modules())
    if spread and state.use_distributed:
        raise ModelError(
            "`accelerator.prepare_model`: the model's `device_map` has several devices, but each of "
            f"{state.num_processes} ranks has one device. Load the model without `device_map`."
        )
    if autocast is not None:
        autocast_forward(model, autocast)
    places_itself = state.fsdp_plugin is not None or any(isinstance(weight, DTensor) for weight in model.parameters())
    if not spread and (not places_itself if moves is None else moves):
        settle_model(model, state.device)
    if wraps and is_trainable(model) and not isinstance(model, DistributedDataParallel):
        devices = None if state.device.type == "cpu" else [state.device]
        model = DistributedDataParallel(model, device_ids=devices, process_group=group)
    if state.compilation is not None and not is_compiled(model):
        chosen = state.compilation
        model = torch.compile(model, backend=chosen.backend, mode=chosen.mode)  # type: ignore[assignment]
    return model


def unwrap(model: nn.Module, *, keeps_autocast: bool, keeps_compiled: bool) -> nn.Module:
    """Return ``model`` without its wrappers.

    Args:
        model: The model.
        keeps_autocast: Whether its forward pass stays under autocast.
        keeps_compiled: Whether a model with no wrapper but ``torch.compile``'s is returned compiled.
    """
    inner = unwrap_model(model)
    if not keeps_autocast:
        without_autocast(inner)
    return model if keeps_compiled and is_compiled(model) and model._orig_mod is inner else inner
