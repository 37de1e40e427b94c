"""What a run does so that its checkpoints are there: when a disk is full, and when the process is asked to leave."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from hf_compat.checkpoint.background import is_wanted
from hf_compat.engine.runner import given_plugins
from hf_compat.engine.signals import slurm_signal
from hf_compat.errors import CheckpointWriteError
from hf_compat.overriding import call_as_defined
from hf_compat.trainer.preemption import Preemption, agreed, exit_status, requeue
from hf_compat.trainer.saving import SavingMethods

__all__ = ["SafekeepingMethods"]

logger = logging.getLogger(__name__)


class SafekeepingMethods(SavingMethods):
    """Saves with an answer to errors, and leaves on a signal."""

    _best_before_save: str | None = None

    def _save_and_tell(self, model: nn.Module, trial: Any, metrics: dict[str, float] | None = None) -> None:
        """Save a checkpoint and fire ``on_save``; what cannot be written ends the run or, if asked for, is logged."""
        self._finish_saving()
        self._best_before_save = self.state.best_model_checkpoint
        try:
            call_as_defined(self._save_checkpoint, ("model", model), ("trial", trial), metrics=metrics)
        except CheckpointWriteError as error:
            self._give_up_checkpoint(error)
            return
        self._checkpoints.last_step = self.state.global_step  # an override may write by itself
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _finish_saving(self) -> None:
        """Wait, on all processes together, for a checkpoint that is being written in the background."""
        if not is_wanted(self.args):
            return
        try:
            self._checkpoints.wait()
        except CheckpointWriteError as error:
            self._give_up_checkpoint(error)

    def _give_up_checkpoint(self, error: CheckpointWriteError) -> None:
        self.state.best_model_checkpoint = self._best_before_save
        if self.args.on_save_error == "raise":
            raise error
        logger.error("%s The training goes on (`on_save_error='warn'`).", error)

    @contextmanager
    def _watching_signals(self) -> Iterator[None]:
        """Notice signals, where the run may save; leave no save unfinished, however the block ends."""
        signum = slurm_signal(given_plugins(self._lightning_keywords))
        saves = self.args.save_strategy != "no" or self.args.enable_jit_checkpoint
        self._preemption = Preemption(signum) if saves else None
        try:
            with nullcontext() if self._preemption is None else self._preemption.watching():
                yield
        except BaseException:
            try:
                self._checkpoints.saver.wait()
            except Exception as error:  # what ended the run is the error to tell of
                logger.error("%s", error)
            raise
        finally:
            self._preemption = None

    def _leave_if_preempted(self) -> None:
        """Save and leave the process if any process of the run was asked to; not once the run is at its end.

        Raises:
            SystemExit: With status 128 + signal, 143 for SIGTERM.
        """
        watch = self._preemption
        if watch is None:
            return
        signum = agreed(watch.received, self.args.ddp_timeout_delta)
        if not signum or self.control.should_training_stop:
            return
        name, step = signal.Signals(signum).name, self.state.global_step
        logger.warning("%s: the run leaves at update step %s.", name, step)
        if self._checkpoints.last_step != step:
            self._save_and_tell(self.model_wrapped, self._trial)
        self._finish_saving()
        if signum == watch.requeue_signal and self.is_world_process_zero():
            requeue()
        self.accelerator.wait_for_everyone()  # a launcher ends the others when the first has left
        raise SystemExit(exit_status(signum))
