"""Dividing a loss by a number, at half the price."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["divide_scalar"]


def divide_scalar(value: Tensor, by: int) -> Tensor:
    """Return ``value / by``, the same bits: by a tensor in host memory, where torch would make a new one each time.

    Args:
        value: On any device. Not of float32, or of a subclass: divided as it is.
        by: The number.
    """
    if type(value) is Tensor and value.dtype is torch.float32:
        return value / _in_host_memory(by)
    return value / by


@lru_cache(maxsize=64)
def _in_host_memory(number: int) -> Tensor:
    with torch.inference_mode(mode=False):  # whoever asks first: it may be saved for a backward pass later
        return torch.tensor(number, dtype=torch.float32, device="cpu")
