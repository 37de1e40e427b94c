"""The process group: initialized, also for DeepSpeed, waited for and destroyed; torch is imported on use."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_compat.distributed.accelerators import accelerator_module, default_backend, is_initialized
from hf_compat.distributed.elastic_store import store_of_this_start, uses_agent_store
from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError, require_package

if TYPE_CHECKING:
    import torch


_logger = logging.getLogger(__name__)

_GLOO_POLL = 0.01
"""Seconds between two looks at gloo's threads: more than one needs to release tensors once it runs."""
_GLOO_WAIT = 5.0
"""Seconds after which a process no longer waits for them: an operation whose other ranks are gone may never end."""
_GLOO_PAUSE = 0.05
"""Seconds to wait where the states of threads cannot be read."""
_STATE_AND_SLEEPS = re.compile(r"^(?:State|voluntary_ctxt_switches):\t(\S+)", re.MULTILINE)
"""A thread's state, and how often it has gone to sleep, in its ``status``."""
_SAME_GPU = (
    ". Several ranks of a node use the same GPU, which NCCL does not allow: start as many processes as there are GPUs, "
    "let CUDA_VISIBLE_DEVICES show each rank a GPU of its own, or set `ddp_backend='gloo'`."
)


def process_group() -> Any | None:
    """Return ``torch.distributed`` if there is a process group, without importing torch; else None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


def leave_processes(group: Any = None) -> None:
    """Destroy the process group, if there is one; or ``group`` alone."""
    joined = process_group()
    if joined is not None:
        joined.destroy_process_group(group)


def wait_for_gloo_threads() -> None:
    """Wait until gloo's threads are idle, if there are any; call it before this process forks or exits.

    They release the tensors of an operation shortly after it is done, which needs the interpreter lock. A fork at that
    moment leaves the lock held in the child, which then hangs. While the interpreter exits, they abort the process, and
    destroying the group does not prevent it: they run as long as a model or a mesh refers to the group.
    """
    if not sys.platform.startswith("linux"):
        if process_group() is not None:
            time.sleep(_GLOO_PAUSE)
        return
    before, end = _gloo_activity(), time.monotonic() + _GLOO_WAIT
    while before and time.monotonic() < end:
        time.sleep(_GLOO_POLL)
        after = _gloo_activity()
        if after == before and all(fields[:1] == ["S"] for fields in after.values()):
            return
        before = after


def _gloo_activity() -> dict[str, list[str]]:
    """Return the state of each thread that runs gloo's operations, and how often it has gone to sleep; Linux only."""
    if "torch" not in sys.modules:
        return {}
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            if (task / "comm").read_text() == "pt_gloo_runloop\n":
                found[task.name] = _STATE_AND_SLEEPS.findall((task / "status").read_text())
    return found


def _leave() -> None:
    wait_for_gloo_threads()
    leave_processes()


def _at_exit(function: Callable[[], None]) -> None:
    atexit.unregister(function)
    atexit.register(function)


def choose_backend(device: torch.device, backend: str | None) -> str:
    """Return the process-group backend for ``device``: the user's ``backend``, or torch's for the device.

    Raises:
        TrainerSetupError: If there is none.
    """
    chosen = backend or default_backend(device)
    if chosen is None:
        raise TrainerSetupError(
            f"`ddp_backend=None`: torch has no process-group backend for {device.type.upper()} devices, so several "
            "processes cannot train on them. Start a single process, or set `use_cpu=True`."
        )
    return chosen


def join_processes(
    launch: Launch, device: torch.device, *, backend: str | None, offloads: bool = False, timeout: timedelta
) -> None:
    """Initialize the process group, if the world size exceeds 1 and there is none.

    Args:
        launch: The ranks and world sizes of this process.
        device: The device of this process; it becomes the current one of its type.
        backend: The user's ``ddp_backend``. Default: that of the device, such as NCCL on GPUs and gloo on CPUs.
        offloads: Whether parameters of a GPU are kept in host memory: their gradient norm is reduced there, by gloo,
            beside NCCL on the GPU, as with accelerate.
        timeout: The timeout of collective operations.

    Raises:
        TrainerSetupError: If the process group cannot be initialized, or torch has no backend for the device.
    """
    import torch

    _make_current(device)
    if process_group() is not None:
        _at_exit(wait_for_gloo_threads)  # the script that joined leaves by itself, if at all
        return
    if launch.world_size == 1:
        return
    chosen = choose_backend(device, backend)
    if chosen in ("nccl", "xccl") and offloads:
        chosen = f"{device.type}:{chosen},cpu:gloo"
    os.environ.setdefault("MASTER_ADDR", launch.address)
    os.environ.setdefault("MASTER_PORT", str(launch.port))
    try:
        store = None
        if uses_agent_store(os.environ):
            store = store_of_this_start(launch.rank, launch.world_size, timeout=timeout)
        torch.distributed.init_process_group(
            backend=chosen,
            store=store,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timeout,
            device_id=device if "nccl" in chosen else None,
        )
        if chosen == "gloo":
            torch.distributed.barrier()  # a rank that left at once would close connections that others are making
    except (RuntimeError, ValueError) as error:
        raise TrainerSetupError(
            f"Rank {launch.rank} of {launch.world_size} ({launch.launcher}) could not join the process group at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} with the backend {chosen} "
            f"(`ddp_backend={backend!r}`): {error}{_SAME_GPU if 'Duplicate GPU' in str(error) else ''}"
        ) from error
    _at_exit(_leave)  # NCCL would block the exit of the interpreter


def join_alone(device: torch.device, *, backend: str | None = None) -> None:
    """Initialize the process group of a world size of 1, if there is none, for what needs one.

    Args:
        device: The device of this process.
        backend: The user's ``ddp_backend``. Default: that of the device.

    Raises:
        TrainerSetupError: If torch has no process-group backend for the device.
    """
    from torch import distributed

    if process_group() is None:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(choose_backend(device, backend), store=store, rank=0, world_size=1)
        _at_exit(_leave)


def _make_current(device: torch.device) -> None:
    """Make ``device`` the current one of its type, if there can be several."""
    # Device 0 is the default; setting it would initialize CUDA, after which the process could not fork.
    if device.type not in ("cpu", "mps") and (device.index or is_initialized(device)):
        accelerator_module(device).set_device(device)


@contextmanager
def main_first(rank: int, *, is_main: bool, desc: str) -> Iterator[None]:
    """Run the block on the main process first, while the others wait; without a process group nothing waits.

    Args:
        rank: The rank of this process.
        is_main: Whether it is the main process, of the run or of its node.
        desc: What the block does, for debug logs.
    """
    group = process_group()
    if group is None:
        yield
        return
    from hf_compat.distributed.oom_consensus import vote  # it imports torch, as the group has

    if not is_main:
        _logger.debug("Rank %d waits for the main process: %s", rank, desc)
        vote()
        group.barrier()
    try:
        yield
    finally:
        if is_main:
            _logger.debug("Rank %d is done, the other ranks continue: %s", rank, desc)
            vote()
            group.barrier()


def import_deepspeed(device: torch.device) -> ModuleType:
    """Return the module ``deepspeed``, imported for ``device``, which it detects on import.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    on_cpu = device.type == "cpu"
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    if on_cpu:
        # Communication through shared memory needs a C++ extension that takes minutes to build; gloo needs none.
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def prepare_process(launch: Launch, device: torch.device) -> None:
    """Set LOCAL_RANK, which DeepSpeed reads, and with a world size of 1 initialize the process group.

    Nothing that a launcher or the script has set is changed. Without a process group DeepSpeed would try MPI.

    Raises:
        TrainerSetupError: If torch has no process-group backend for ``device``.
    """
    os.environ.setdefault("LOCAL_RANK", str(launch.local_rank))
    if launch.world_size == 1:
        join_alone(device)
