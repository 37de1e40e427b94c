"""Joining and leaving the processes of a run, and whose turn it is; torch is only imported where it is used."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hf_compat.distributed.devices import cuda_is_initialized
from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    import torch

__all__ = ["join_processes", "leave_processes", "let_operations_end", "main_first", "process_group"]

_logger = logging.getLogger(__name__)


def process_group() -> Any | None:
    """Return ``torch.distributed`` if it is in use; it cannot be while torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


def leave_processes() -> None:
    """End the process group, if there is one."""
    group = process_group()
    if group is not None:
        group.destroy_process_group()


def let_operations_end() -> None:
    """Give the threads of gloo a moment; to be called before this process forks, or ends, in a run of several.

    They let go of an operation's tensors shortly after it is done, and need the interpreter for that. A fork in that
    moment leaves its lock taken in the child, which then waits for ever; at the end of the interpreter they abort it.
    """
    if process_group() is not None:
        time.sleep(0.05)


def _leave_at_exit() -> None:
    let_operations_end()
    leave_processes()


def join_processes(launch: Launch, device: torch.device, *, backend: str | None, timeout: timedelta) -> None:
    """Let the processes of the run find each other; once, however often it is called.

    Args:
        launch: Which process of how many this is.
        device: The device of this process, made the current one if it is a GPU.
        backend: The user's ``ddp_backend``. Default: NCCL on GPUs, else gloo.
        timeout: How long a collective operation may take.

    Raises:
        TrainerSetupError: If the launcher's variables describe no run, or the backend cannot be used.
    """
    import torch

    # The first GPU is the current one until CUDA is in use; saying so would start it, and forbid a later fork.
    if device.type == "cuda" and (device.index or cuda_is_initialized()):
        torch.cuda.set_device(device)
    if launch.world_size == 1 or process_group() is not None:
        return
    os.environ.setdefault("MASTER_ADDR", launch.address)
    os.environ.setdefault("MASTER_PORT", str(launch.port))
    chosen = backend or ("nccl" if device.type == "cuda" else "gloo")
    try:
        torch.distributed.init_process_group(
            backend=chosen,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timeout,
            device_id=device if chosen == "nccl" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise TrainerSetupError(
            f"Rank {launch.rank} of {launch.world_size} ({launch.launcher}) could not reach the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} with `ddp_backend={backend!r}`, "
            f"which is {chosen}: {error}"
        ) from error
    atexit.register(_leave_at_exit)  # NCCL would hold the interpreter up


@contextmanager
def main_first(rank: int, *, is_main: bool, desc: str) -> Iterator[None]:
    """Run the block on the main process first, while the others wait; at once where there is no process group.

    Args:
        rank: The rank of this process.
        is_main: Whether it is the main process, of the run or of its node.
        desc: What the block does, for debug logs.
    """
    group = process_group()
    if group is None:
        yield
        return
    if not is_main:
        _logger.debug("rank %d waits for the main process to do: %s", rank, desc)
        group.barrier()
    try:
        yield
    finally:
        if is_main:
            _logger.debug("rank %d is done, the others go on: %s", rank, desc)
            group.barrier()
