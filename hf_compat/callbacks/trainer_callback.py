"""``TrainerCallback``: the base class of callbacks, with one method per event.

Names, order and arguments are those of transformers ``trainer_callback.py``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.derived import evaluates_in_training, is_better
from hf_compat.errors import EarlyStoppingError
from hf_compat.state import ExportableState, TrainerControl, TrainerState
from hf_compat.upstream_names import CountsCounterparts, derives_from_counterpart

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


class TrainerCallback(metaclass=CountsCounterparts):
    """Base class of callbacks: override the methods of the events you need.

    Every event gets ``args``, ``state`` and ``control`` by position, and by keyword ``model``, ``processing_class``,
    ``optimizer``, ``lr_scheduler``, ``train_dataloader`` and ``eval_dataloader``, each None before it exists; with
    ``metrics`` or ``logs`` after an evaluation, a prediction or a log. An event changes the run by setting a flag of
    ``control``, or returns another control.
    """

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run once the trainer is built."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the first epoch, after optimizer and scheduler are created and a checkpoint is loaded."""

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run once training is over."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the first batch of an epoch is loaded."""

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after an epoch, also one that stopped early."""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the first batch of an update step."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run between gradient clipping and the optimizer step."""

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after the optimizer step, before gradients are zeroed."""

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after every batch of an update step but the last."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after an update step; log, evaluation and save follow if the control requests them."""

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after an evaluation, with its ``metrics``."""

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> TrainerControl | None:
        """Run after a prediction."""

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after a checkpoint was saved."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after ``logs`` were added to the history; all callbacks and the caller share the dict."""

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after every batch of an evaluation or prediction."""

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the model is pushed to the Hub."""


def is_kind_of(callback: object, kind: type) -> bool:
    """Return whether ``callback`` is an instance of ``kind``, or of the other library's class of the same name.

    A script may pass transformers' ``ProgressCallback`` to remove ours from the trainer.
    """
    return isinstance(callback, kind) or derives_from_counterpart(type(callback), kind)


# The callback that stops training when the metric no longer improves.


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
