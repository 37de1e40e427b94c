"""The default search spaces and the default objective."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hf_compat.errors import require_package

if TYPE_CHECKING:
    import optuna

__all__ = [
    "BestRun",
    "Trial",
    "best_run",
    "default_compute_objective",
    "default_hp_space_optuna",
    "default_hp_space_ray",
]

Trial: TypeAlias = Any | dict[str, Any]  # no type that is unknown where optuna is not installed
"""A trial: an ``optuna.Trial``, or Ray Tune's configuration."""

_BATCH_SIZES = (4, 8, 16, 32, 64)
_TIMING_SUFFIXES = ("_runtime", "_per_second", "_compilation_time")


class BestRun(NamedTuple):
    """The best trial of a search, or one of the best of a search with several objectives."""

    run_id: str
    """The trial's number, or Ray's id of it; its checkpoints are in ``run-<run_id>`` unless ``hp_name`` named it."""
    objective: float | list[float]
    """What ``compute_objective`` returned for it; one number per objective."""
    hyperparameters: dict[str, Any]
    """Its hyperparameters, by name."""
    run_summary: Any | None = None
    """Ray's ``ExperimentAnalysis`` of the whole search; None for optuna."""


def best_run(
    run_id: str, objective: float | list[float], hyperparameters: dict[str, Any], run_summary: Any | None = None
) -> BestRun:
    """Return a :class:`BestRun`, which is one of transformers' too if a script has loaded that."""
    return _best_run_class(sys.modules.get("transformers.trainer_utils"))(
        run_id, objective, hyperparameters, run_summary
    )


@cache
def _best_run_class(upstream: ModuleType | None) -> type[BestRun]:
    theirs = getattr(upstream, "BestRun", None)
    if theirs is None or theirs is BestRun:  # hf_compat stands in for it
        return BestRun
    content = {"__slots__": (), "__module__": __name__, "__reduce__": lambda best: (best_run, tuple(best))}
    return type("BestRun", (BestRun, theirs), content)


def default_compute_objective(metrics: Mapping[str, float]) -> float:
    """Return the sum of all ``metrics`` except loss, epoch, times and speeds; the loss if there are no others."""
    excluded = {"eval_loss", "epoch"}
    scores = [value for name, value in metrics.items() if name not in excluded and not name.endswith(_TIMING_SUFFIXES)]
    return sum(scores) if scores else metrics.get("eval_loss")  # type: ignore[return-value]


def default_hp_space_optuna(trial: optuna.Trial) -> dict[str, Any]:
    """Return hyperparameters suggested by ``trial``: learning rate, epochs, seed and batch size.

    Raises:
        MissingPackageError: If optuna is not installed.
    """
    require_package("optuna", extra="optuna", purpose="`default_hp_space_optuna`")
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", list(_BATCH_SIZES)),
    }


def default_hp_space_ray(trial: object) -> dict[str, Any]:
    """Return the search space for Ray Tune: learning rate, epochs, seed and batch size.

    Args:
        trial: Not used; Ray samples before a trial starts.

    Raises:
        MissingPackageError: If ``ray[tune]`` is not installed.
    """
    tune = require_package("ray.tune", extra="ray", purpose="`default_hp_space_ray`")
    return {
        "learning_rate": tune.loguniform(1e-6, 1e-4),
        "num_train_epochs": tune.choice(list(range(1, 6))),
        "seed": tune.uniform(1, 40),
        "per_device_train_batch_size": tune.choice(list(_BATCH_SIZES)),
    }
