"""Trials chosen by optuna, run one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_compat.errors import SearchError, require_package
from hf_compat.tuning.spaces import BestRun

__all__ = ["report", "run"]

_OPTIMIZE = ("timeout", "n_jobs", "gc_after_trial", "catch")
"""Keywords of ``Study.optimize``; all others are those of ``create_study``."""


def run(
    trainer: Any, n_trials: int, direction: str | list[str], release: Callable[[Any], None], **kwargs: Any
) -> BestRun | list[BestRun]:
    """Return the best of ``n_trials`` trainings of ``trainer``; with several directions, all that none dominates.

    Args:
        trainer: A Trainer with a ``model_init``.
        n_trials: How many to run; those that a stored study already holds are not counted.
        direction: ``"minimize"`` or ``"maximize"``, or one of them per objective.
        release: Lets go of the trainer's model, so that the next trial has the memory.
        **kwargs: Keywords of ``optuna.create_study``, and of ``Study.optimize``: ``timeout`` in seconds,
            ``gc_after_trial``, ``catch``.

    Raises:
        SearchError: If ``n_jobs`` asks for trials side by side, which would share one Trainer.
        ValueError: If no trial ran to its end, as optuna does.
    """
    optuna = require_package("optuna", extra="optuna", purpose="`hyperparameter_search(backend='optuna')`")
    optimize = {name: kwargs.pop(name) for name in _OPTIMIZE if name in kwargs}
    if optimize.get("n_jobs", 1) != 1:
        raise SearchError(
            f"`n_jobs={optimize['n_jobs']}`: trials would train the one Trainer at the same time. Drop it, and start "
            "several processes with the same `storage` and `study_name` and `load_if_exists=True` instead."
        )
    goal = {"directions": direction} if isinstance(direction, list) else {"direction": direction}
    study = optuna.create_study(**goal, **kwargs)
    study.optimize(lambda trial: _train(trainer, trial, release), n_trials=n_trials, **optimize)
    if len(study.directions) > 1:
        return [BestRun(str(trial.number), trial.values, trial.params) for trial in study.best_trials]
    best = study.best_trial
    return BestRun(str(best.number), best.value, best.params)


def _train(trainer: Any, trial: Any, release: Callable[[Any], None]) -> Any:
    """Train with the values of ``trial`` and return its objective, that of the last evaluation."""
    trainer.objective = None
    try:
        trainer.train(trial=trial)
        if trainer.objective is None:
            trainer.objective = trainer.compute_objective(trainer.evaluate())
        return trainer.objective
    finally:
        release(trainer)


def report(trainer: Any, trial: Any, step: int, metrics: dict[str, float]) -> None:
    """Tell optuna the objective at update step ``step``; end the training if the pruner says so.

    Nothing is told of several objectives, which optuna does not prune by, nor by a trial that is in no study.

    Raises:
        optuna.TrialPruned: If the trial is to end, after ``on_train_end``.
    """
    optuna = require_package("optuna", extra="optuna", purpose="`hyperparameter_search(backend='optuna')`")
    if not hasattr(trial, "study") or len(trial.study.directions) > 1:
        return
    trial.report(trainer.objective, step)
    if trial.should_prune():
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise optuna.TrialPruned(f"Pruned at update step {step}: the objective was {trainer.objective}.")
