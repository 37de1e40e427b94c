"""Times of evaluations that Lightning's keywords give and no training argument can express."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from hf_compat.data.windows import Window
from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.plan.evaluation_times import EvaluationTimes, steps_between

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["EvaluationTiming"]


class EvaluationTiming:
    """Asks for an evaluation, by ``control.should_evaluate``, when one is due.

    A fraction or a number of update steps is counted from the beginning of each epoch. A time is measured by each rank
    from the end of its last evaluation; all evaluate once one finds that it is due, which they exchange
    twice a second, and ten times within a shorter interval.

    Args:
        trainer: The Trainer.
        times: When the run evaluates.
    """

    def __init__(self, trainer: Trainer, times: EvaluationTimes) -> None:
        self._trainer = trainer
        self._times = times
        self._steps: int | None = None
        self._evaluated_at = 0.0
        self._was_due = False
        interval = times.every.total_seconds() if isinstance(times.every, timedelta) else math.inf
        self._votes = PacedVotes(min(0.5, interval / 10))

    def begin(self) -> None:
        """Count or measure from here."""
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        self._steps = steps_between(self._times, plan, has_length=plan.num_train_epochs < sys.maxsize)
        self._evaluated_at = time.monotonic()

    def begin_window(self) -> None:
        """Measure from here if there was an evaluation since the last update step."""
        if self._was_due:
            self._evaluated_at, self._was_due = time.monotonic(), False

    def request_after_update(self, window: Window) -> None:
        """Request an evaluation after the update step of ``window``, if it is due."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end:
            return
        is_due = self._is_time() if self._steps is None else self._is_step(window, self._steps)
        if is_due and times.has_epoch(window.epoch) and trainer.state.global_step >= times.delay:
            trainer.control.should_evaluate = True
            self._was_due = True

    def request_after_epoch(self, epoch: int) -> None:
        """Request an evaluation after ``epoch``, if it is one with evaluations."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end and times.has_epoch(epoch) and (trainer.state.epoch or 0) >= times.delay:
            trainer.control.should_evaluate = True

    def _is_step(self, window: Window, steps: int) -> bool:
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        done = window.batches_before + len(window.batches)
        return math.ceil(done / plan.accumulate) % steps == 0

    def _is_time(self) -> bool:
        assert isinstance(self._times.every, timedelta), "neither steps nor epochs count"
        is_due = time.monotonic() - self._evaluated_at >= self._times.every.total_seconds()
        timeout = self._trainer.args.ddp_timeout_delta
        return bool(self._votes.max_over_ranks(self._trainer.state.global_step, int(is_due), timeout))
