"""``auto_find_batch_size``: a run that does not fit into memory is started again with smaller batches."""

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
"""The share of the batch size that is tried next, rounded down."""
_SIGNS = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)
"""What torch says on CUDA, ROCm and XPU, on MPS, in cuDNN, on a CPU and on Gaudi when memory does not suffice."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that the device's memory did not suffice.

    References:
        The errors that accelerate's ``should_reduce_batch_size`` counts.
    """
    return isinstance(error, RuntimeError) and len(error.args) == 1 and any(sign in str(error) for sign in _SIGNS)


def with_smaller_batches(run: Callable[..., T], batch_size: int) -> T:
    """Return ``run(batch_size=...)`` for the first size, from ``batch_size`` down, that memory suffices for.

    Each size is nine tenths of the one before, rounded down, as in accelerate since 1.9.

    Args:
        run: Starts from the beginning whenever it is called, with the weights and optimizer that the last call left.
        batch_size: Samples per process in a batch, to begin with.

    Raises:
        BatchSizeError: If memory does not suffice for one sample.
    """
    size = batch_size
    failure: RuntimeError | None = None
    while size > 0:
        free_memory()
        try:
            return run(batch_size=size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Without its traceback, whose frames hold the batch and the activations.
            failure = error.with_traceback(None)
        logger.warning("Memory ran out with %s samples in a batch; training starts again with fewer.", size)
        size = int(size * _SHRINK_FACTOR)
    raise BatchSizeError(
        f"`auto_find_batch_size=True`: no executable batch size found from {batch_size} down to 1; use a smaller model "
        "or shorter samples, or `gradient_checkpointing=True`."
    ) from failure


def free_memory() -> None:
    """Give back what only cycles of objects hold, and the device's memory that nothing uses any more."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
