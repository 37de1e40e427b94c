"""Devices of a model's parameters: moving it to the device of its rank, unless it was placed when it was loaded."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from hf_compat.errors import ModelError

logger = logging.getLogger(__name__)

_OFFLOADED = {"cpu", "disk"}


def devices_of(model: nn.Module) -> set[Any]:
    """Return the devices that the ``device_map`` of ``model`` places it on; none without one."""
    return set((getattr(model, "hf_device_map", None) or {}).values())


def has_device_map(model: nn.Module) -> bool:
    """Return whether ``model``, or a module of it, has a ``device_map`` of several entries, as accelerate counts."""
    return any(len(getattr(module, "hf_device_map", None) or ()) > 1 for module in model.modules())


def is_spread(model: nn.Module, device: torch.device) -> bool:
    """Return whether ``model`` is not on ``device`` alone, by its ``device_map`` or its own ``parallelize``.

    References:
        As transformers' ``Trainer.is_model_parallel``.
    """
    devices = devices_of(model) - _OFFLOADED
    if not devices:
        return _is_split(model)
    return len(devices) > 1 or any(torch.device(each) != device for each in devices)


def _is_split(model: nn.Module) -> bool:
    """Return whether the ``parallelize`` of ``model`` itself has spread it."""
    return bool(getattr(model, "is_parallelizable", False) and getattr(model, "model_parallel", False))


def check_offloading(model: nn.Module) -> None:
    """Raise if the ``device_map`` of ``model`` leaves a part of it on the CPU or the disk, which cannot be trained.

    Raises:
        ModelError: If so.
    """
    devices = devices_of(model)
    if devices & _OFFLOADED and len(devices) > 1:
        raise ModelError(
            f"`model`: its `device_map` places it on {sorted(map(str, devices))}, but weights that are offloaded to "
            "the CPU or to disk are copied to a GPU for each forward pass, so that training would not change them. Use "
            "more GPUs or quantize the model, so that a `device_map` of GPUs suffices."
        )


def is_in_8_or_4_bits(model: nn.Module) -> bool:
    """Return whether ``model`` says that its weights are quantized to 8 or 4 bits, as those of bitsandbytes do."""
    return bool(getattr(model, "is_loaded_in_8bit", False) or getattr(model, "is_loaded_in_4bit", False))


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move ``model`` to ``device``, unless it is bitsandbytes' or was loaded with a ``device_map``."""
    devices = devices_of(model)
    if devices:
        logger.warning(
            "The model is already on multiple devices, or has a `device_map`, which places it on %s. Skipping the move "
            "to device specified in `args`.",
            ", ".join(sorted(map(str, devices))),
        )
    elif getattr(model, "quantization_method", None) != "bitsandbytes":  # of which some cannot be moved
        model.to(device)


def settle_model(model: nn.Module, device: torch.device) -> None:
    """Move ``model`` to ``device``, where its inputs are, unless it is spread over several devices.

    A ``device_map`` of a single device only says where the model was loaded; weights in 8 or 4 bits stay there.

    Raises:
        ModelError: If they are on another device.

    References:
        As accelerate ``accelerator.py`` ``prepare_model``.
    """
    devices = devices_of(model)
    if not (devices and is_in_8_or_4_bits(model)):
        if not (has_device_map(model) or _is_split(model)):
            model.to(device)
    elif len(devices) == 1 and torch.device(next(iter(devices))) not in (device, torch.device(device.type)):
        raise ModelError(
            f"`model`: it is quantized and on {next(iter(devices))}, but the run is on {device}. Load it with "
            f"`device_map={{'': {str(device)!r}}}`."
        )
