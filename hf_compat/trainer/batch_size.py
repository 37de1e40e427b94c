"""``auto_find_batch_size``: a run that runs out of memory is restarted with a smaller batch size, on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule

from hf_compat.distributed.oom_consensus import oom_consensus
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.errors import BatchSizeError
from hf_compat.memory import free_memory

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


def batch_size_problems(process_layout: ProcessLayout, model: nn.Module | None, *, syncs_norms: bool) -> list[str]:
    """Return why ``auto_find_batch_size`` is not supported on several ranks, one message each.

    Args:
        process_layout: Where the run takes place.
        model: The model; None if ``model_init`` has not been called yet.
        syncs_norms: Whether Lightning makes ``SyncBatchNorm`` layers of the model's.
    """
    field, problems = "`auto_find_batch_size=True` is not supported", []
    size = "Set a `per_device_train_batch_size` that fits"
    fsdp, is_old = process_layout.fsdp, not hasattr(FSDPModule, "reset_iter_state")
    if is_old and process_layout.strategy == "presharded":
        problems.append(
            f"{field} with a model that `from_pretrained` has sharded and torch before 2.13, which cannot begin again "
            f"after an error in the middle of a pass. Install a newer torch, or {size[0].lower()}{size[1:]}."
        )
    if fsdp is not None and (fsdp.version == 1 or is_old):
        problems.append(
            f"{field} with FSDP version 1, or with torch before 2.13: neither can begin again after an error in the "
            f"middle of a pass. Set `fsdp_config={{'version': 2}}`, or {size[0].lower()}{size[1:]}."
        )
    if any(process_layout.ddp_hooks.get(name) is not None for name in ("ddp_comm_hook", "ddp_comm_state")):
        problems.append(
            f"{field} with a communication hook in `lightning={{'strategy': ...}}`: it needs its own. Remove the hook, "
            f"or {size[0].lower()}{size[1:]}."
        )
    has_norms = model is not None and any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    if syncs_norms or has_norms:
        named = "sync_batchnorm=True" if syncs_norms else "SyncBatchNorm"
        problems.append(
            f"{field} with `{named}` on several ranks: ranks synchronise in these layers, so a rank that runs out of "
            f"memory would hang the others. {size}."
        )
    return problems


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` is an out-of-memory error.

    References:
        Same errors as accelerate's ``should_reduce_batch_size``.
    """
    return isinstance(error, RuntimeError) and len(error.args) == 1 and any(sign in str(error) for sign in _SIGNS)


def with_smaller_batches(
    run: Callable[..., T],
    batch_size: int,
    *,
    equalise: Callable[[], None] = lambda: None,
    timeout: timedelta | None = None,
) -> T:
    """Return ``run(batch_size)`` for the first size, from ``batch_size`` down, that fits into memory on all ranks.

    Each size is 0.9 times the previous one, rounded down, as in accelerate since 1.9. Every rank has to call it; when
    one of them runs out of memory, all begin again with the next size.

    Args:
        run: Trains from the beginning at each call, with the weights and optimizer of the previous call.
        batch_size: The first per-device batch size, the same on all ranks.
        equalise: Makes what the next call begins with the same on all ranks, wherever each of them was.
        timeout: Timeout of a vote.

    Raises:
        BatchSizeError: On every rank, if even one sample does not fit into memory.
    """
    size = batch_size
    failure: BaseException | None = None
    while size > 0:
        if failure is not None:
            free_memory()
            equalise()
        with oom_consensus(is_out_of_memory, timeout) as current:
            try:
                result = run(size)
                current.vote()  # the others may still be at it
                return result
            except Exception as error:
                if not current.ends_by(error):
                    raise
                failure = _without_frames(error)
        logger.warning("Out of memory with a batch size of %s; training restarts with a smaller one.", size)
        size = int(size * _SHRINK_FACTOR)
    raise BatchSizeError(
        f"`auto_find_batch_size=True`: no executable batch size found from {batch_size} down to 1. Use a smaller model "
        "or shorter samples, or set `gradient_checkpointing=True`."
    ) from failure


def _without_frames(error: BaseException) -> BaseException:
    """Return ``error`` without tracebacks, whose frames reference the batch and the activations."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        linked = linked.__context__
    return error
