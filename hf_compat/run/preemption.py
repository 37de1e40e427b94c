"""Preemption: SIGTERM, and SLURM's SIGUSR1, make a run save a checkpoint, exit, and have its job requeued.

A handler only notes the signal. The run looks at the note when a window has ended, saves a complete checkpoint and
exits with status ``128 + signal``: 143 for SIGTERM. The time a scheduler grants has to cover one update step with the
evaluation and the save that may belong to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost
    from hf_compat.run.saving import CheckpointSaving

__all__ = ["Preemption", "SignalWatch", "exit_status", "max_over_ranks", "requeue"]

logger = logging.getLogger(__name__)


def exit_status(signum: int) -> int:
    """Return the status a shell reports of a process that ``signum`` ended.

    After a requeue too it is not 0: nothing that the job script runs next, ``&&``, may take the run for finished.
    """
    return 128 + signum


class SignalWatch:
    """Notes the signals that ask this process to exit.

    Args:
        requeue_signal: The signal by which SLURM announces the end of the job's time, None for none.

    Attributes:
        received: The first signal that arrived, 0 while there is none.
    """

    def __init__(self, requeue_signal: int | None = None) -> None:
        self.received = 0
        self.requeue_signal = requeue_signal
        self._process = os.getpid()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note signals until the block ends, then put the handlers back that were there.

        A signal that the program ignores goes on being ignored, and a SIGUSR1 that it handles stays its own. Nothing is
        watched outside the main thread, where Python allows no handlers. A signal that nobody acted on, because the run
        had made its last update step, is raised again after the block.
        """
        former: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            former = {signum: signal.getsignal(signum) for signum in self.signals() if self._may_handle(signum)}
        for signum in former:
            signal.signal(signum, self._note)
        try:
            yield
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)
        if self.received:
            logger.warning("%s arrived after the last update step.", signal.Signals(self.received).name)
            signal.raise_signal(self.received)

    def signals(self) -> list[int]:
        """Return the signals that are noted."""
        return [signal.SIGTERM, *([] if self.requeue_signal is None else [self.requeue_signal])]

    def _may_handle(self, signum: int) -> bool:
        handler = signal.getsignal(signum)
        # None stands for a handler of a library in C, which could not be put back.
        free = handler not in (signal.SIG_IGN, None)
        return free and (signum == signal.SIGTERM or handler == signal.SIG_DFL)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process inherits handlers, but has no run to save
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        elif not self.received:  # a second signal changes nothing, least of all a save under way
            self.received = signum


class Preemption(RunCallback):
    """Saves and exits once any rank of the run was asked to; not once the run is at its end.

    Hooks: ``on_train_batch_end`` but after the epoch's last window, ``on_train_epoch_end``.

    Args:
        host: The Trainer.
        watch: Notes the signals of this process.
        saving: Saves.
    """

    def __init__(self, host: RunHost, watch: SignalWatch, saving: CheckpointSaving) -> None:
        self._host = host
        self._watch = watch
        self._saving = saving

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        """Exit if asked to; at an epoch's end what belongs to that comes first."""
        if pl_module.made_update and not trainer.is_last_batch:
            self._exit_if_preempted()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Exit if asked to."""
        self._exit_if_preempted()

    def _exit_if_preempted(self) -> None:
        """Save and exit.

        Raises:
            SystemExit: With status 128 + signal, 143 for SIGTERM.
        """
        host = self._host
        signum = max_over_ranks(self._watch.received, host.args.ddp_timeout_delta)
        if not signum or host.control.should_training_stop:
            return
        logger.warning("%s: saving and exiting after step %s.", signal.Signals(signum).name, host.state.global_step)
        if not self._saving.has_saved:
            self._saving.save(host.model_wrapped, host._trial)
        self._saving.finish()
        if signum == self._watch.requeue_signal and host.is_world_process_zero():
            requeue()
        host.accelerator.wait_for_everyone()  # a launcher ends the others when the first has exited
        raise SystemExit(exit_status(signum))


def max_over_ranks(signum: int, timeout: timedelta | None = None) -> int:
    """Return the largest ``signum`` that any process of the run passed; each has to call it at the same point.

    With several processes this is one reduction of four bytes between the hosts, some 0.1 ms on one machine; no process
    waits for its device. A single process asks nobody.

    Args:
        signum: What this process noted, 0 for nothing.
        timeout: How long it waits for the others. Default: torch's for the backend.

    Raises:
        RuntimeError: If another process is gone, or does not come.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return signum
    vote = torch.tensor([signum], dtype=torch.int32)
    distributed.all_reduce(vote, op=distributed.ReduceOp.MAX, group=_cpu_group(distributed.group.WORLD, timeout))
    return int(vote.item())


_cpu_groups: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""A group of all processes to the one of the same processes that was made of it, as long as the former is there."""


def _cpu_group(world: Any, timeout: timedelta | None) -> Any:
    """Return a group of all processes of ``world`` that talks between hosts."""
    if distributed.get_backend(world) == "gloo":
        return world
    if world not in _cpu_groups:
        _cpu_groups[world] = distributed.new_group(backend="gloo", timeout=timeout)
    return _cpu_groups[world]


def requeue() -> bool:
    """Have SLURM put this job back in the queue; return whether it did."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{task}"
    program = shutil.which("scontrol")
    if program is None:
        logger.error("The job %s is not requeued: there is no `scontrol` on PATH.", job)
        return False
    done = subprocess.run([program, "requeue", job], capture_output=True, text=True, check=False)
    if done.returncode:
        logger.error("`scontrol requeue %s` failed: %s", job, done.stderr.strip() or done.stdout.strip())
        return False
    logger.warning("The job %s is requeued.", job)
    return True
