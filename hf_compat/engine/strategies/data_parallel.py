"""Several GPUs in one process: torch's ``DataParallel`` replicates the model in each forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from hf_compat.engine.moving import is_in_8_or_4_bits
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["DataParallelStrategy", "data_parallel_strategy", "replicated"]


class DataParallelStrategy(ModelStrategy, SingleDeviceStrategy):
    """The model on the first GPU, with replicas on the others for the length of a forward and a backward pass.

    To Lightning it is a single device. The wrapper is what the Trainer's ``_wrap_model`` returns: it is the Trainer's
    ``model_wrapped`` in training, and evaluations make one of their own.

    Args:
        device: The first GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__(device=device)


def replicated(model: nn.Module) -> nn.Module:
    """Return ``model`` in ``DataParallel``, or as it is if its weights are quantized and cannot be replicated."""
    return model if is_in_8_or_4_bits(model) else nn.DataParallel(model)


def data_parallel_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DataParallelStrategy:
    """Return the strategy of a run on several GPUs of this process."""
    return DataParallelStrategy(device)
