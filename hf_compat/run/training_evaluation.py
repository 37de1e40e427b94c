"""Evaluations during training, and their times where no training argument can express them."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_compat.data.windows import Window
from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.errors import BatchSizeError
from hf_compat.memory import WeakAttribute
from hf_compat.optim.schedulers import steps_on_metric
from hf_compat.overriding import call_as_defined
from hf_compat.plan.evaluation_times import EvaluationTimes, steps_between
from hf_compat.run.batch_size import is_out_of_memory
from hf_compat.run.best_model import metric_for_best
from hf_compat.run.run_warnings import warn_of_negative_plateau

if TYPE_CHECKING:
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["EvaluationTiming", "TrainingEvaluation"]


class TrainingEvaluation:
    """Evaluates, reports the metrics to a hyperparameter search, and steps a metric-based schedule.

    Args:
        run: The run.

    Attributes:
        ignore_keys: Model outputs that are excluded from the predictions of these evaluations.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._trainer = run, run.trainer
        self.ignore_keys = run.ignore_keys
        self._before: Tensor | None = None

    def evaluate(
        self, trial: Trial | None, ignore_keys_for_eval: list[str] | None, *, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate, report and return the metrics.

        Args:
            trial: The trial of a hyperparameter search, None outside one.
            ignore_keys_for_eval: Model outputs excluded from the predictions.
            skip_scheduler: Do not step a metric-based schedule.

        Raises:
            BatchSizeError: If it runs out of memory; ``auto_find_batch_size`` reduces only the training batch size.
        """
        metrics = self.measure(ignore_keys_for_eval)
        call_as_defined(
            self._trainer._report_to_hp_search,
            ("trial", trial),
            ("step", self._trainer.state.global_step),
            ("metrics", metrics),
        )
        scheduler: Any = self._trainer.lr_scheduler
        if steps_on_metric(scheduler) and not skip_scheduler:
            metric = metric_for_best(self._trainer.args, metrics)
            warn_of_negative_plateau(scheduler, metric, self._run.warn_once)
            scheduler.step(metric)
        return metrics

    def measure(self, ignore_keys: list[str] | None) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            ignore_keys: Model outputs excluded from the predictions.

        Raises:
            BatchSizeError: If it runs out of memory; ``auto_find_batch_size`` reduces only the training batch size.
        """
        trainer = self._trainer
        self._before = sample_of_weights(trainer.model)
        try:
            metrics = call_as_defined(trainer.evaluate, ignore_keys=ignore_keys)
        except Exception as error:
            self._run.exit_if_preempted()  # a signal may have ended loader workers
            if trainer.args.auto_find_batch_size and is_out_of_memory(error):
                raise BatchSizeError(
                    "Evaluation hit an out-of-memory error: `auto_find_batch_size=True` only reduces the training "
                    f"batch size. Set a `per_device_eval_batch_size` below {trainer.args.per_device_eval_batch_size}."
                ) from error
            raise
        self._before = None
        return metrics  # type: ignore[no-any-return]

    def keeps_weights(self) -> bool:
        """Return whether the model has the weights of training, also where an evaluation has not come to its end.

        Callbacks and overrides may evaluate others, such as averages, and put the former back afterwards.
        """
        return self._before is None or torch.equal(self._before, sample_of_weights(self._trainer.model))


def sample_of_weights(model: nn.Module) -> Tensor:
    """Return some elements of each parameter of this rank, in float32, on one device."""
    parts: list[Tensor] = []
    for parameter in model.parameters():
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        if type(own) not in (Tensor, nn.Parameter):  # quantized ones, which are not trained, have no plain elements
            continue
        corner = own[(slice(2),) * own.dim()].flatten()[:8]
        parts.append((torch.view_as_real(corner).flatten() if corner.is_complex() else corner).float())
    return torch.cat([part.to(parts[0].device, copy=True) for part in parts]).nan_to_num() if parts else torch.empty(0)


class EvaluationTiming:
    """Asks for an evaluation, by ``control.should_evaluate``, when one is due.

    A fraction or a number of update steps is counted from the beginning of each epoch. A time is measured by each rank
    from the end of its last evaluation; all evaluate once one finds that it is due, which they exchange
    twice a second, and ten times within a shorter interval.

    Args:
        trainer: The Trainer.
        times: When the run evaluates.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

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
