"""``TrainerCallback``: the base class of callbacks, with one method per event.

Names, order and arguments are those of transformers ``trainer_callback.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.state import TrainerControl, TrainerState
from hf_compat.upstream_names import CountsCounterparts, derives_from_counterpart

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["TrainerCallback", "is_kind_of"]


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
