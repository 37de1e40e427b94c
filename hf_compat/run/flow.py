"""Logging, evaluating and saving in order, and the end of training, through the Trainer's overridable methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from hf_compat.engine.callbacks import RunCallback
from hf_compat.overriding import call_as_defined

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.evaluation.results import TrainOutput
    from hf_compat.run.clipping import GradientClipping, Norm
    from hf_compat.run.host import RunHost
    from hf_compat.run.progress import Counts, Progress
    from hf_compat.run.saving import CheckpointSaving
    from hf_compat.run.schedule import LRSchedule
    from hf_compat.run.training_evaluation import TrainingEvaluation
    from hf_compat.run.training_logs import TrainingLogs
    from hf_compat.tuning.spaces import Trial

__all__ = ["Flow"]


class Flow(RunCallback):
    """Calls ``_maybe_log_save_evaluate`` after update steps and epochs, and ``_finalize_training`` at the end.

    Hooks: ``on_train_batch_end``, ``on_train_epoch_end``, ``on_train_end``.

    Args:
        host: The Trainer.
        counts: Has the loss.
        clipping: Has the gradient norm.
        schedule: Has the learning rate.
        progress: Has the plan and the start time.
        logging: Logs.
        evaluation: Evaluates.
        saving: Saves.
        finish: Called with the result of the run.
    """

    def __init__(
        self,
        host: RunHost,
        counts: Counts,
        clipping: GradientClipping,
        schedule: LRSchedule,
        progress: Progress,
        logging: TrainingLogs,
        evaluation: TrainingEvaluation,
        saving: CheckpointSaving,
        finish: Callable[[TrainOutput], None],
    ) -> None:
        self._host = host
        self._counts = counts
        self._clipping = clipping
        self._schedule = schedule
        self._progress = progress
        self._logging = logging
        self._evaluation = evaluation
        self._saving = saving
        self._finish = finish

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Log, evaluate and save, each if the control says so, after an update step."""
        if pl_module.made_update:
            self._log_save_evaluate(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log, evaluate and save, each if the control says so."""
        self._log_save_evaluate(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call ``_finalize_training``."""
        plan = self._progress.plan
        assert plan is not None, "a fit has a plan"
        host = self._host
        self._finish(host._finalize_training(host._trial, plan.num_train_samples, self._progress.start_time))

    def _log_save_evaluate(self, trainer: pl.Trainer) -> None:
        self._saving.begin_step()
        call_as_defined(
            self._host._maybe_log_save_evaluate,
            ("tr_loss", self._counts.tr_loss),
            ("grad_norm", self._clipping.norm),
            ("model", self._host.model_wrapped),
            ("trial", self._host._trial),
            ("epoch", trainer.current_epoch),
            ("ignore_keys_for_eval", self._evaluation.ignore_keys),
            ("start_time", self._progress.start_time),
            learning_rate=self._schedule.learning_rate,
        )

    def log_evaluate_save(
        self,
        tr_loss: Tensor,
        grad_norm: Norm,
        model: nn.Module,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None,
        learning_rate: float | None,
    ) -> None:
        """Log, evaluate and save, each if the control says so; see the Trainer's ``_maybe_log_save_evaluate``."""
        host = self._host
        started = self._progress.start_time if start_time is None else start_time
        self._logging.log_if_due(tr_loss, grad_norm, learning_rate, started)
        metrics = None
        if host.control.should_evaluate:
            metrics = host._evaluate(trial, ignore_keys_for_eval)
            is_best = host._determine_best_metric(metrics=metrics, trial=trial)
            if host.args.save_strategy == "best":
                host.control.should_save = is_best
        if host.control.should_save:
            self._saving.save(model, trial, metrics)
