"""Signals on which a run saves and exits, SIGTERM and SLURM's SIGUSR1; the deadline for it, and requeuing the job."""

from __future__ import annotations

import _thread
import itertools
import logging
import multiprocessing
import multiprocessing.pool
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed

from hf_compat.data.loader import has_short_lived, ignoring_signals
from hf_compat.distributed.oom_consensus import PacedVotes, gloo_group, has_other_ranks, max_over_ranks, vote
from hf_compat.engine.internals.loops import may_stop
from hf_compat.memory import WeakAttribute

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.trainer.saving import CheckpointSaving
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# The time that a run has after SIGTERM, and what happens to code that has not returned by then.


_POLL_SECONDS = 0.1
_EXIT_SECONDS = 5.0
"""Seconds that an interrupted run has at least to be left, and threads and functions of ``atexit`` after it."""


def exit_status(signum: int) -> int:
    """Return the exit status that shells report for a process killed by ``signum``.

    It is not 0 after a requeue either: in a job script, ``&&`` must not continue as if training were complete.
    """
    return 128 + signum


class OverdueExit(SystemExit):
    """Raised in code that has not returned in time after SIGTERM; no Exception, which a dataset may catch and go on."""


class Deadline:
    """Ends a run, and then its process, that has not ended by itself some time after SIGTERM.

    A thread of its own, started by the signal, has :class:`OverdueExit` raised in the main thread, wherever that is,
    unless an update step or a save is under way. Python does so between two instructions and in what waits: for a lock,
    a queue, a file, a process. If the run is not left soon after, as in a function in C or in one that waits for
    another rank, the process ends, and so it does if it hangs at the exit of the interpreter: threads are joined there,
    and the processes of a ``multiprocessing.Pool``.

    Args:
        timeout: Seconds after the signal.
        is_saving: Returns whether the main thread is writing a checkpoint, or waits for one.

    Attributes:
        timeout: Seconds after the signal.
        seconds_to_leave: Seconds from there to the end of the process, if the run is not left: 5, or a quarter of
            ``timeout`` if that is more. What saves has the time that it takes.
        interrupted: Where code was interrupted; None if it was not.
    """

    def __init__(self, timeout: float, is_saving: Callable[[], bool] = lambda: False) -> None:
        self.timeout = timeout
        self.seconds_to_leave = max(timeout / 4, _EXIT_SECONDS)
        self.interrupted: str | None = None
        self._is_saving = is_saving
        self._status = 0
        self._end = float("inf")  # in seconds of `time.monotonic`, as all times here
        self._handler: object = None
        self._is_inside = False
        self._is_cancelled = False
        self._has_asked = False
        self._step_began: float | None = None
        self._longest_step = 0.0

    def begin_step(self) -> None:
        """Note that an update step begins: it is waited for up to twice as long as the longest one has taken."""
        self._step_began = time.monotonic()

    def end_step(self) -> None:
        """Note that no update step is under way; a second call has no effect."""
        if self._step_began is not None:
            self._longest_step = max(self._longest_step, time.monotonic() - self._step_began)
            self._step_began = None

    def start(self, signum: int) -> None:
        """Begin to wait; a second call has no effect. Called by a signal handler, which must take no lock."""
        if not self._status:
            self._status, self._is_inside = exit_status(signum), True
            self._end = time.monotonic() + self.timeout
            self._handler = signal.getsignal(signal.SIGTERM)
            _thread.start_new_thread(self._enforce, ())  # `threading` takes locks, which the main thread may hold

    def leave(self, *, exits: bool) -> None:
        """Note that the run is left; nothing is interrupted any more.

        Args:
            exits: Whether by a SystemExit, so that the process is about to end.
        """
        self._is_cancelled, self._is_inside = not exits, False

    def interrupt(self, frame: FrameType | None) -> None:
        """Raise in ``frame``, the current one of the main thread, if that was requested; called by a signal handler.

        Raises:
            OverdueExit: With the status of the signal.
        """
        if self._has_asked and self._is_inside and self.interrupted is None and not self._is_busy():
            stack = traceback.extract_stack(frame)
            self.interrupted = f"{stack[-1].filename}, line {stack[-1].lineno}, in {stack[-1].name}"
            raise OverdueExit(self._status)

    def _is_busy(self) -> bool:
        began = self._step_began
        in_step = began is not None and time.monotonic() < began + 2 * self._longest_step
        return in_step or self._is_saving()

    def _enforce(self) -> None:
        """Wait for the end of the run, then for that of the process, and end what does not end."""
        if self._await_run() and not self._await_exit(self._end):
            return
        text = f"The process is ended with status {self._status}: it is still here, at\n{_main_stack()}"
        _write_and_flush(text)
        for child in multiprocessing.active_children():  # which would stay, and keep what they write to open
            child.kill()
        os._exit(self._status)

    def _await_run(self) -> bool:
        """Return whether the run is left in time; interrupt it when the time is over."""
        last = None
        while self._is_inside:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if self._is_busy():
                last = None
            elif now >= self._end:
                last = now + self.seconds_to_leave if last is None else last
                if now >= last:
                    return False
                if self.interrupted is None:
                    self._ask()
        return True

    def _ask(self) -> None:
        """Have the signal's handler, which calls :meth:`interrupt`, called in the main thread."""
        self._has_asked = True
        if self._is_inside and signal.getsignal(signal.SIGTERM) == self._handler:
            signal.pthread_kill(_main_thread_id(), signal.SIGTERM)

    def _await_exit(self, deadline: float) -> bool:
        """Return True if the process has to be ended, False if it is not to end."""
        stuck_since = None
        while threading.main_thread().is_alive():  # until the interpreter joins threads and calls those of `atexit`
            if self._is_cancelled:
                return False
            now = time.monotonic()
            stuck_since = (stuck_since or now) if _waits_in_pool() else None
            if stuck_since is not None and now >= max(deadline, stuck_since + _EXIT_SECONDS):
                return True
            time.sleep(_POLL_SECONDS)
        time.sleep(max(deadline - time.monotonic(), _EXIT_SECONDS))
        return True


def _main_thread_id() -> int:
    return threading.main_thread().ident or 0


def _main_stack() -> str:
    frame = sys._current_frames().get(_main_thread_id())
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _waits_in_pool() -> bool:
    """Return whether the main thread waits for a lock that an ended process of a ``multiprocessing.Pool`` holds."""
    frame = sys._current_frames().get(_main_thread_id())
    return frame is not None and frame.f_code.co_filename == multiprocessing.pool.__file__


def _write_and_flush(text: str) -> None:
    """Write ``text`` to standard error, and what Python's streams hold; not if another thread holds their locks."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

    os.write(2, f"{text}\n".encode(errors="replace"))
    _thread.start_new_thread(flush, ())
    time.sleep(5 * _POLL_SECONDS)


# Preemption: on SIGTERM, and SLURM's SIGUSR1, a run saves a checkpoint, exits, and requeues its job.
#
# The signal handler only records the signal. After the update step under way the run saves a checkpoint and exits with
# status `128 + signal`, 143 for SIGTERM; several processes, which exchange this about twice a second, do so up to 16
# steps later. The scheduler's grace period has to cover that, an evaluation and the save.
#
# SIGTERM also starts a `Deadline`, after which code that does not return is interrupted.


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
            with ignoring_signals(self.signals()):
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
