"""The run of a Trainer: the one under way or the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.run.run import TrainingRun
from hf_compat.trainer.views import counts_of

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["current_run", "new_run", "prepare_strategy"]


def new_run(trainer: Trainer, trial: Any = None, ignore_keys: list[str] | None = None) -> TrainingRun:
    """Set and return the run of ``trainer``, which has not begun yet.

    Args:
        trainer: The Trainer.
        trial: The trial of a search, None without one.
        ignore_keys: Model outputs that evaluations during training leave out of the predictions.
    """
    parts = (trainer._runtime, counts_of(trainer), trainer._checkpoints, trainer._warn_once)
    run = trainer._run = TrainingRun(trainer, *parts, trial=trial, ignore_keys=ignore_keys)
    return run


def current_run(trainer: Trainer) -> TrainingRun:
    """Return the run under way or the last one; before any, one that has not begun."""
    return new_run(trainer) if trainer._run is None else trainer._run


def prepare_strategy(trainer: Trainer) -> None:
    """Let the strategy put around the model what it is evaluated, or saved, through."""
    wrapped = trainer._runtime.prepare_evaluation(trainer.args, trainer.model)
    if wrapped is not None:
        current_run(trainer).take_wrapper(wrapped)
