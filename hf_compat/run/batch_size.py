"""``auto_find_batch_size``: a run that runs out of memory is restarted with a smaller batch size."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from hf_compat.errors import BatchSizeError

__all__ = ["free_memory", "is_out_of_memory", "with_smaller_batches"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SHRINK_FACTOR = 0.9
"""The factor by which the batch size is reduced, rounded down."""
_SIGNS = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)
"""torch's out-of-memory messages: on CUDA, ROCm and XPU, on MPS, in cuDNN, on the CPU and on Gaudi."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` is an out-of-memory error.

    References:
        Same errors as accelerate's ``should_reduce_batch_size``.
    """
    return isinstance(error, RuntimeError) and len(error.args) == 1 and any(sign in str(error) for sign in _SIGNS)


def with_smaller_batches(run: Callable[..., T], batch_size: int) -> T:
    """Return ``run(batch_size)`` for the first size, from ``batch_size`` down, that fits into memory.

    Each size is 0.9 times the previous one, rounded down, as in accelerate since 1.9.

    Args:
        run: Trains from the beginning at each call, with the weights and optimizer of the previous call.
        batch_size: The first per-device batch size.

    Raises:
        BatchSizeError: If even one sample does not fit into memory.
    """
    size = batch_size
    failure: RuntimeError | None = None
    while size > 0:
        free_memory()
        try:
            return run(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Without its traceback, whose frames reference the batch and the activations.
            failure = error.with_traceback(None)
        logger.warning("Out of memory with a batch size of %s; training restarts with a smaller one.", size)
        size = int(size * _SHRINK_FACTOR)
    raise BatchSizeError(
        f"`auto_find_batch_size=True`: no executable batch size found from {batch_size} down to 1. Use a smaller model "
        "or shorter samples, or set `gradient_checkpointing=True`."
    ) from failure


def free_memory() -> None:
    """Collect garbage and empty the device's memory cache."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
