"""The events of a run, as the methods of the class that users derive their callbacks from.

Names, order and arguments are those of transformers ``trainer_callback.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["TrainerCallback", "is_kind_of"]

_COUNTERPARTS = {"hf_compat": "transformers", "transformers": "hf_compat"}


class TrainerCallback:
    """Base of callbacks: override the events you want to see.

    Every event is given the arguments, the state and the control by position. By name it is given ``model``,
    ``processing_class``, ``optimizer``, ``lr_scheduler``, ``train_dataloader`` and ``eval_dataloader``, each None
    before it exists. An event changes the run by setting a switch of ``control``, or by returning another control.
    """

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run once the trainer is built."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the first epoch, with optimizer, scheduler and checkpoint in place."""

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run once training is over."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before an epoch fetches its first batch."""

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after an epoch, one that was cut short too."""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the first batch of an update step."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run between clipping and the optimizer's step."""

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after the optimizer's step, with the gradients still there."""

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after every batch of an update step but the last."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run once an update step is counted; log, evaluation and save follow if the control asks for them."""

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after an evaluation, with its ``metrics``."""

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after a prediction."""

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after a checkpoint was saved."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after ``logs`` entered the history; the dict is shared by all callbacks and the caller."""

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run after every batch of an evaluation or prediction."""

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Run before the model is pushed to the Hub."""


def is_kind_of(callback: Any, kind: type) -> bool:
    """Return whether ``callback`` is a ``kind``, or of the class that the other library has under the same name.

    A script may name transformers' ``ProgressCallback`` and mean ours, the one that it finds in its trainer.
    """
    if isinstance(callback, kind):
        return True
    counterpart = _COUNTERPARTS.get(_package(kind))
    return counterpart is not None and any(
        base.__name__ == kind.__name__ and _package(base) == counterpart for base in type(callback).__mro__
    )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
