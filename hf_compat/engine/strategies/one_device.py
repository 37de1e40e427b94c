"""One device: nothing is wrapped, nothing exchanged."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from hf_compat.engine.internals.strategies import KeepOnDeviceStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy

__all__ = ["OneDeviceStrategy", "one_device_strategy"]


class OneDeviceStrategy(ModelStrategy, KeepOnDeviceStrategy, SingleDeviceStrategy):
    """One device, on which the optimizer's state stays when a run ends."""


def one_device_strategy(placement: Placement, args: Any, model: nn.Module) -> OneDeviceStrategy:
    """Return the strategy of one run from placement, arguments and model."""
    return OneDeviceStrategy(device=args.device)
