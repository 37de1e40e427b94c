"""A single device: the model is not wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from hf_compat.engine.internals.strategies import KeepOnDeviceStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["OneDeviceStrategy", "one_device_strategy"]


class OneDeviceStrategy(ModelStrategy, KeepOnDeviceStrategy, SingleDeviceStrategy):
    """A single device, on which the optimizer's state stays when a run ends."""


def one_device_strategy(placement: Placement, args: TrainingArguments, model: nn.Module) -> OneDeviceStrategy:
    """Return the single-device strategy of a run."""
    return OneDeviceStrategy(device=args.device)
