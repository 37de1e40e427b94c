"""Moving a model to the device of its rank, unless it was placed when it was loaded."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from hf_compat.errors import ModelError

__all__ = ["devices_of", "move_model"]

logger = logging.getLogger(__name__)


def devices_of(model: nn.Module) -> set[Any]:
    """Return the devices that the ``device_map`` of ``model`` places it on; none without one."""
    return set((getattr(model, "hf_device_map", None) or {}).values())


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move ``model`` to ``device``, unless it is quantized or was loaded with a ``device_map``.

    Raises:
        ModelError: If its ``device_map`` has several devices.
    """
    devices = devices_of(model)
    if len(devices) > 1:
        raise ModelError(
            f"The model is already on multiple devices: its `device_map` places it on {sorted(map(str, devices))}, but "
            "each rank trains on one. Load it without `device_map`."
        )
    if devices:
        logger.warning(
            "The model has a `device_map`, which places it on %s. Skipping the move to device specified in `args`.",
            *devices,
        )
    elif getattr(model, "quantization_method", None) is None:
        model.to(device)
