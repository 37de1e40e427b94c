"""Evaluations during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_compat.errors import BatchSizeError
from hf_compat.optim.schedulers import steps_on_metric
from hf_compat.overriding import call_as_defined
from hf_compat.run.batch_size import is_out_of_memory
from hf_compat.run.best_model import metric_for_best

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["TrainingEvaluation"]


class TrainingEvaluation:
    """Evaluates, reports the metrics to a hyperparameter search, and steps a metric-based schedule.

    Args:
        trainer: The Trainer.
        ignore_keys: Model outputs that are excluded from the predictions of these evaluations.
        exit_if_preempted: Called when an evaluation has failed; exits if a signal may have ended loader workers.
    """

    def __init__(self, trainer: Trainer, ignore_keys: list[str] | None, exit_if_preempted: Callable[[], None]) -> None:
        self._trainer = trainer
        self.ignore_keys = ignore_keys
        self._exit_if_preempted = exit_if_preempted

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
        trainer, metrics = self._trainer, self.measure(ignore_keys_for_eval)
        call_as_defined(
            trainer._report_to_hp_search, ("trial", trial), ("step", trainer.state.global_step), ("metrics", metrics)
        )
        scheduler: Any = trainer.lr_scheduler
        if steps_on_metric(scheduler) and not skip_scheduler:
            scheduler.step(metric_for_best(trainer.args, metrics))
        return metrics

    def measure(self, ignore_keys: list[str] | None) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            ignore_keys: Model outputs excluded from the predictions.

        Raises:
            BatchSizeError: If it runs out of memory; ``auto_find_batch_size`` reduces only the training batch size.
        """
        trainer = self._trainer
        try:
            return call_as_defined(trainer.evaluate, ignore_keys=ignore_keys)  # type: ignore[no-any-return]
        except Exception as error:
            self._exit_if_preempted()
            if trainer.args.auto_find_batch_size and is_out_of_memory(error):
                raise BatchSizeError(
                    "Evaluation hit an out-of-memory error: `auto_find_batch_size=True` only reduces the training "
                    f"batch size. Set a `per_device_eval_batch_size` below {trainer.args.per_device_eval_batch_size}."
                ) from error
            raise
