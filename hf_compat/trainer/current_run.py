"""The current or last run of a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.loggers import open_loggers
from hf_compat.run.run import TrainingRun
from hf_compat.trainer.views import counts_of

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["current_run", "new_run", "prepare_strategy"]


def new_run(trainer: Trainer, trial: Trial | None = None, ignore_keys: list[str] | None = None) -> TrainingRun:
    """Create a run, set it as the current one of ``trainer`` and return it.

    Args:
        trainer: The Trainer.
        trial: The trial of a hyperparameter search, None outside one.
        ignore_keys: Model outputs excluded from the predictions of evaluations during training.
    """
    parts = (trainer.lightning_backend, counts_of(trainer), trainer.checkpoint_writer, trainer.warn_once)
    run = trainer.training_run = TrainingRun(trainer, *parts, trial=trial, ignore_keys=ignore_keys)
    return run


def current_run(trainer: Trainer) -> TrainingRun:
    """Return the current or last run; before the first, a new one."""
    return new_run(trainer) if trainer.training_run is None else trainer.training_run


def prepare_strategy(trainer: Trainer) -> None:
    """Let the strategy wrap the model if it needs a wrapper to be evaluated or saved."""
    backend, callbacks = trainer.lightning_backend, trainer.callback_handler.callbacks
    # Opening them begins a new run of each tracker in a search: only where a Lightning trainer is about to be built.
    loggers = open_loggers(callbacks, trainer.args, trainer.state) if backend.pl_trainer is None else ()
    wrapped = backend.prepare_evaluation(trainer.args, trainer.model, loggers)
    if wrapped is not None:
        current_run(trainer).take_wrapper(wrapped)
