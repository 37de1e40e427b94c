"""The default callbacks, whose names scripts may change before they make a Trainer, and the one that decides its flow.

They are attributes of ``hf_compat`` and of ``hf_compat.trainer`` too, as transformers' are of ``transformers.trainer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.callbacks.console import ProgressCallback
from hf_compat.callbacks.notebook import NotebookProgressCallback, is_in_notebook
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


class DefaultFlowCallback(TrainerCallback):
    """Implements the logging, evaluation and save strategies; without it nothing is logged, evaluated or saved."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Apply the strategies ``"steps"``, and stop after the last update step."""
        step, saves = state.global_step, args.save_strategy == "steps"
        evaluates = args.eval_strategy == "steps" and args.eval_delay <= step
        if args.logging_strategy == "steps" and step % state.logging_steps == 0:
            control.should_log = True
        if step == 1 and args.logging_first_step:
            control.should_log = True
        if evaluates and step % state.eval_steps == 0:
            control.should_evaluate = True
        if saves and state.save_steps > 0 and step % state.save_steps == 0:
            control.should_save = True
        if step >= state.max_steps:
            control.should_training_stop = True
            control.should_save |= saves
            control.should_evaluate |= evaluates and _evaluates_last_step(args)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Apply the strategies ``"epoch"``."""
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= (state.epoch or 0):
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


def _evaluates_last_step(args: TrainingArguments) -> bool:
    # transformers' own arguments have no such field.
    return resolve_semantics(getattr(args, "semantics", None)).evaluates_last_step


DEFAULT_CALLBACKS: list[Any] = [DefaultFlowCallback]
"""Callbacks, classes or instances, that come first in every Trainer."""
DEFAULT_PROGRESS_CALLBACK: Any = NotebookProgressCallback if is_in_notebook() else ProgressCallback
"""The callback, a class or an instance, that comes last, unless ``disable_tqdm`` is set."""
