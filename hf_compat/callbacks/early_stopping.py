"""The callback that stops training when the metric no longer improves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.best_metric import is_better
from hf_compat.arguments.cadence import evaluates_in_training
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.errors import EarlyStoppingError
from hf_compat.state import ExportableState, TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["EarlyStoppingCallback"]

logger = logging.getLogger("transformers.trainer_callback")
"""Upstream's: scripts set its level, and look there for these warnings."""


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops training when ``metric_for_best_model`` has not improved for a number of consecutive evaluations.

    The best value excludes the current evaluation: the state is updated after this callback.

    Args:
        early_stopping_patience: Evaluations without improvement after which training stops.
        early_stopping_threshold: Minimum improvement, in the metric's unit.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0
        """Evaluations without improvement so far."""

    def check_metric_value(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metric_value: float
    ) -> None:
        """Reset the counter if ``metric_value`` is an improvement, else increase it."""
        best = state.best_metric
        threshold = self.early_stopping_threshold or 0.0
        if best is None or (is_better(args, metric_value, best) and abs(metric_value - best) > threshold):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the arguments.

        Raises:
            EarlyStoppingError: If there is no metric or no evaluation.
        """
        problems = []
        if args.metric_for_best_model is None:
            problems.append(
                "`metric_for_best_model=None`: EarlyStoppingCallback needs a metric to watch; set it to 'eval_loss' or "
                "to a name that `compute_metrics` returns."
            )
        if not evaluates_in_training(args):
            problems.append(
                "`eval_strategy='no'`: EarlyStoppingCallback needs evaluations; set it to 'steps' or 'epoch'."
            )
        if problems:
            raise EarlyStoppingError(problems)
        if not args.load_best_model_at_end:
            logger.warning(
                "Using EarlyStoppingCallback without load_best_model_at_end=True: the run keeps its last weights, not "
                "the best ones."
            )

    def on_evaluate(  # type: ignore[override]
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Count the evaluation and stop training once patience is exhausted."""
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        value = metrics.get(name)
        if value is None:
            text = (
                f"EarlyStoppingCallback: early stopping required metric_for_best_model, but did not find {name} among "
                "the metrics; this evaluation is not counted."
            )
            logger.warning(text)
            return
        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """Return the settings and the counter."""
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }
