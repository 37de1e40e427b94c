"""Preemption: on SIGTERM, and SLURM's SIGUSR1, a run saves a checkpoint, exits, and requeues its job.

The signal handler only records the signal. After the update step under way the run saves a checkpoint and exits with
status ``128 + signal``, 143 for SIGTERM; several processes, which exchange this about twice a second, do so up to 16
steps later. The scheduler's grace period has to cover that, an evaluation and the save.

SIGTERM also starts a ``Deadline``, after which code that does not return is interrupted.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed

from hf_compat.data.workers import has_short_lived, outliving
from hf_compat.distributed.oom_consensus import PacedVotes, gloo_group, has_other_ranks, max_over_ranks, vote
from hf_compat.engine.internals.loops import may_stop
from hf_compat.memory import WeakAttribute
from hf_compat.run.deadline import Deadline, exit_status

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.saving import CheckpointSaving
    from hf_compat.trainer.trainer import Trainer

__all__ = ["NOT_ALL_RANKS", "Preemption", "SignalWatch", "deadline_group", "is_same_on_all_ranks", "requeue"]

logger = logging.getLogger(__name__)

NOT_ALL_RANKS = "not every rank was interrupted after it, and a checkpoint needs all of them"
"""Why there is no checkpoint although this rank could save."""
_CHILD_ENDED = signal.SIGCHLD


class SignalWatch:
    """Records signals that request this process to exit.

    Args:
        requeue_signal: The signal that SLURM sends before the job's time limit, None outside a SLURM job.
        replaces_handler: Whether to record SIGTERM even if the program has a handler of its own for it.
        deadline: What SIGTERM starts; None to wait for ever.

    Attributes:
        received: The first signal received, 0 before any.
        requeue_signal: As given.
        deadline: As given.
    """

    def __init__(
        self,
        requeue_signal: int | None = None,
        *,
        replaces_handler: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        self.received = 0
        self.requeue_signal = requeue_signal
        self.deadline = deadline
        self._replaces_handler = replaces_handler
        self._process = os.getpid()
        self._on_child_end: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context that installs signal handlers, and restores the previous ones at its end.

        Loader workers that start in it outlive the signals. Of those that run already, the end by such a signal is an
        error where their next batch is read, not in the middle of an update.

        Signals that the program ignores, a SIGUSR1 that it handles, and such a SIGTERM unless that handler is to be
        replaced, are not recorded. Outside the main thread, where Python allows no handlers, none are. A handler that
        the program installs meanwhile stays. A signal received after the last update step is raised again at the end
        of the context.

        Raises:
            SystemExit: For a RuntimeError of one of several ranks after a signal: one that waits for another, which was
                interrupted at the deadline, learns in this way that it has left.
        """
        previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            previous = {signum: signal.getsignal(signum) for signum in self.signals() if self._may_handle(signum)}
        for signum in previous:
            signal.signal(signum, self._record)
        if previous and callable(signal.getsignal(_CHILD_ENDED)):  # torch's, if workers run already
            self._on_child_end = previous[_CHILD_ENDED] = signal.signal(_CHILD_ENDED, self._child_ended)
        try:
            with outliving(self.signals()):
                yield
        except RuntimeError as error:  # as each error of a collective is
            if self.received and has_other_ranks():
                name = signal.Signals(self.received).name
                logger.exception("%s: exiting without a save; another rank may have left before this one:", name)
                raise SystemExit(exit_status(self.received)) from error
            raise
        finally:
            if self.deadline is not None:
                self.deadline.leave(exits=isinstance(sys.exception(), SystemExit))
            for signum, handler in previous.items():
                if signal.getsignal(signum) in (self._record, self._child_ended):
                    signal.signal(signum, handler)
        if self.received:
            logger.warning("%s was received after the last update step.", signal.Signals(self.received).name)
            signal.raise_signal(self.received)

    def signals(self) -> list[int]:
        """Return the signals that are recorded."""
        return [signal.SIGTERM, *([] if self.requeue_signal is None else [self.requeue_signal])]

    def _may_handle(self, signum: int) -> bool:
        handler = signal.getsignal(signum)
        # None is a handler that was not installed from Python, which could not be restored.
        free = handler not in (signal.SIG_IGN, None)
        return free and (handler == signal.SIG_DFL or (signum == signal.SIGTERM and self._replaces_handler))

    def _record(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process, such as a loader worker, inherits the handlers
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.received = self.received or signum  # further signals do not interrupt a save
        if signum == signal.SIGTERM and self.deadline is not None:
            self.deadline.start(self.received)
            self.deadline.interrupt(frame)

    def _child_ended(self, signum: int, frame: FrameType | None) -> None:
        try:
            self._on_child_end(signum, frame)
        except RuntimeError as error:
            if not any(str(signal.strsignal(each)) in str(error) for each in self.signals()):
                raise


class Preemption:
    """Saves and exits when any rank has received a signal, unless training is about to end.

    Args:
        trainer: The Trainer.
        watch: Records the signals of this process.
        saving: Saves.

    Attributes:
        reads_together: Whether each window has to be read by :meth:`read_together`.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, watch: SignalWatch, saving: CheckpointSaving) -> None:
        self._trainer = trainer
        self._watch = watch
        self._saving = saving
        self._votes = PacedVotes()
        self._timeout = trainer.args.ddp_timeout_delta
        several = trainer.args.world_size > 1
        self.reads_together = several and bool(max_over_ranks(int(has_short_lived()), self._timeout))
        self._is_whole = False
        self._group = deadline_group(watch.deadline)

    def begin_step(self) -> None:
        """Note that an update step begins, in the middle of which nothing can be saved."""
        self._is_whole = False
        if self._watch.deadline is not None:
            self._watch.deadline.begin_step()

    def end_step(self) -> None:
        """Note that the states are those after a whole update step; a second call has no effect."""
        self._is_whole = True
        if self._watch.deadline is not None:
            self._watch.deadline.end_step()

    def end_training(self) -> None:
        """Note that there is nothing more to save: the model may become the best one."""
        self._is_whole = False

    def read_together(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """Return the next ``count`` of ``batches``, fewer at their end, once all ranks have read theirs.

        For runs on several ranks with workers that may not outlive a signal: no rank begins an update step that
        another one has no batches for. Called between two update steps.

        Raises:
            SystemExit: If a rank cannot read on after a signal; with status 128 + signal, once all have saved.
        """
        lost = 0
        try:
            read = list(itertools.islice(batches, count))
        except Exception:  # of any class, where a batch is lost with the worker that sent it
            lost = self._watch.received
            if not lost:
                raise
        vote()
        signum = max_over_ranks(lost, self._timeout)
        if signum:
            self._save_and_exit(signum)
        return iter(read)

    def exit_without_workers(self, pl_trainer: pl.Trainer) -> None:
        """Save and exit if the signal that this process has received may have ended the workers of a loader.

        Called between two update steps, when no batch can be read. With several ranks it does nothing: the others
        wait for this one's next update step, unless they have read together.

        Raises:
            SystemExit: With status 128 + signal.
        """
        if self._watch.received and self._trainer.args.world_size == 1:
            self.exit_if_signalled(pl_trainer)

    def exit_if_signalled(self, pl_trainer: pl.Trainer) -> None:
        """Save and exit if a rank has received a signal.

        Raises:
            SystemExit: With status 128 + signal, 143 for SIGTERM.
        """
        trainer = self._trainer
        signum = self._votes.max_over_ranks(trainer.state.global_step, self._watch.received, self._timeout)
        if signum and not (trainer.control.should_training_stop and may_stop(pl_trainer)):
            self._save_and_exit(signum)

    def save_if_interrupted(self, *, keeps_weights: bool) -> None:
        """Save the last update step if code was interrupted at the deadline, and all states are those after that step.

        With several ranks it has to be the same step on all, each of which was interrupted.

        Args:
            keeps_weights: Whether the weights are those of the last update step, not others for an evaluation.
        """
        deadline, signum = self._watch.deadline, self._watch.received
        if deadline is None or deadline.interrupted is None:
            return
        step, name = self._trainer.state.global_step, signal.Signals(signum).name
        logger.warning(
            "%s: interrupted at %s, which had not returned %s seconds after the signal (`preemption_timeout`).",
            *(name, deadline.interrupted, deadline.timeout),
        )
        reason = ""
        if not (self._is_whole and keeps_weights):
            reason = "its states cannot be saved from there"
        elif not is_same_on_all_ranks(2 * step + self._saving.has_saved, self._group):
            reason = NOT_ALL_RANKS
        if reason:
            logger.warning("There is no checkpoint of update step %s: %s.", step, reason)
            return
        self._save(name, step)
        self._requeue_if_asked(signum)

    def _save_and_exit(self, signum: int) -> NoReturn:
        self._save(signal.Signals(signum).name, self._trainer.state.global_step)
        self._requeue_if_asked(signum)
        self._trainer.accelerator.wait_for_everyone()  # launchers kill all processes when the first one exits
        raise SystemExit(exit_status(signum))

    def _save(self, name: str, step: int) -> None:
        logger.warning("%s: saving and exiting after update step %s.", name, step)
        if step > 0 and not self._saving.has_saved:
            self._saving.save(self._trainer.model_wrapped, self._trainer._trial)
        self._saving.finish()

    def _requeue_if_asked(self, signum: int) -> None:
        if signum == self._watch.requeue_signal and self._trainer.is_world_process_zero():
            requeue()


def deadline_group(deadline: Deadline | None) -> distributed.ProcessGroup | None:
    """Return the group for :func:`is_same_on_all_ranks`, None for one process or without a deadline; on every rank."""
    if deadline is None or not has_other_ranks():
        return None
    seconds = deadline.seconds_to_leave / 2
    return gloo_group(f"{seconds} seconds after a deadline", timedelta(seconds=seconds))


def is_same_on_all_ranks(number: int, group: distributed.ProcessGroup | None) -> bool:
    """Return whether all ranks call this with the same ``number``, within the timeout of ``group``; True without one.

    The answer of all of them is the same, unless a rank calls it as the time of another is over.
    """
    if group is None:
        return True
    both = torch.tensor([number, -number])
    try:
        distributed.all_reduce(both, distributed.ReduceOp.MAX, group)
    except RuntimeError:  # the others are not interrupted, or gone
        return False
    return bool(both[0] == -both[1])


def requeue() -> bool:
    """Have SLURM put this job back in the queue; return whether it did."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{task}"
    program = shutil.which("scontrol")
    if program is None:
        logger.error("The job %s cannot be requeued: `scontrol` is not on PATH.", job)
        return False
    done = subprocess.run([program, "requeue", job], capture_output=True, text=True, check=False)
    if done.returncode:
        logger.error("`scontrol requeue %s` failed: %s", job, done.stderr.strip() or done.stdout.strip())
        return False
    logger.warning("The job %s is requeued.", job)
    return True
