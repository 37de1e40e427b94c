"""A single device: the model is not wrapped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["OneDeviceStrategy", "one_device_strategy"]


class OneDeviceStrategy(ModelStrategy, SingleDeviceStrategy):
    """A single device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__(device=device)

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Return None, unless ``model`` is one of several processes', prepared before a run has a strategy."""
        return super().without_sync(model) if torch.distributed.is_initialized() else None


def one_device_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> OneDeviceStrategy:
    """Return the single-device strategy of a run."""
    return OneDeviceStrategy(device)
