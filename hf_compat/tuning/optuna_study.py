"""The optuna backend: trials run one after another in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_compat.errors import SearchError, require_package
from hf_compat.tuning.spaces import BestRun, best_run

if TYPE_CHECKING:
    import optuna

    from hf_compat.trainer import Trainer

__all__ = ["report", "run"]

_OPTIMIZE = ("timeout", "n_jobs", "gc_after_trial", "catch")
"""Keywords of ``Study.optimize``; all others are passed to ``create_study``."""


def run(
    trainer: Trainer,
    n_trials: int,
    direction: str | list[str],
    release: Callable[[Trainer], None],
    **kwargs: Any,
) -> BestRun | list[BestRun]:
    """Return the best of ``n_trials`` trials; with several directions, all Pareto-optimal ones.

    Args:
        trainer: A Trainer with a ``model_init``.
        n_trials: Trials to run, not counting those in a stored study.
        direction: ``"minimize"`` or ``"maximize"``, or one of them per objective.
        release: Frees the trainer's model, so that the next trial has the memory.
        **kwargs: Keywords of ``optuna.create_study``, and of ``Study.optimize``: ``timeout`` in seconds,
            ``gc_after_trial``, ``catch``.

    Raises:
        SearchError: If ``n_jobs`` is not 1: parallel trials would share one Trainer.
        ValueError: If no trial was completed, as in optuna.
    """
    optuna = require_package("optuna", extra="optuna", purpose="`hyperparameter_search(backend='optuna')`")
    optimize = {name: kwargs.pop(name) for name in _OPTIMIZE if name in kwargs}
    if optimize.get("n_jobs", 1) != 1:
        raise SearchError(
            f"`n_jobs={optimize['n_jobs']}` is not supported: parallel trials would share one Trainer. Remove it, and "
            "start several processes with the same `storage`, `study_name` and `load_if_exists=True` instead."
        )
    directions = {"directions": direction} if isinstance(direction, list) else {"direction": direction}
    study = optuna.create_study(**directions, **kwargs)
    study.optimize(lambda trial: _train(trainer, trial, release), n_trials=n_trials, **optimize)
    if len(study.directions) > 1:
        return [best_run(str(trial.number), trial.values, trial.params) for trial in study.best_trials]
    best = study.best_trial
    return best_run(str(best.number), best.value, best.params)


def _train(trainer: Trainer, trial: optuna.Trial, release: Callable[[Trainer], None]) -> float | list[float]:
    """Train with the hyperparameters of ``trial`` and return the objective of the last evaluation."""
    trainer.objective = None
    try:
        trainer.train(trial=trial)
        if trainer.objective is None:
            trainer.objective = trainer.compute_objective(trainer.evaluate())
        objective: float | list[float] = trainer.objective
        return objective
    finally:
        release(trainer)


def report(trainer: Trainer, trial: optuna.Trial, step: int, metrics: dict[str, float]) -> None:
    """Report the objective at update step ``step`` to optuna; stop the training if the pruner says so.

    Nothing is reported for several objectives, which optuna cannot prune, or for a trial without a study.

    Raises:
        optuna.TrialPruned: If the trial is pruned, after ``on_train_end``.
    """
    optuna = require_package("optuna", extra="optuna", purpose="`hyperparameter_search(backend='optuna')`")
    if not hasattr(trial, "study") or len(trial.study.directions) > 1:
        return
    trial.report(trainer.objective, step)
    if trial.should_prune():
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise optuna.TrialPruned(f"Pruned at update step {step}: the objective was {trainer.objective}.")
