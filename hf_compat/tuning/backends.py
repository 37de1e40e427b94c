"""The backends of a hyperparameter search: which are installed, how each runs trials, and how a trial is set up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.checks import find_problems
from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.enums import HPSearchBackend
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import NotSupportedError, SearchError, is_installed
from hf_compat.tuning import optuna_study, ray_tune
from hf_compat.tuning.spaces import BestRun, Trial, default_hp_space_optuna, default_hp_space_ray

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["BACKENDS", "Backend", "apply_values", "choose_backend", "run_id"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """The functions of a backend that a search calls."""

    package: str
    """The package to import."""
    extra: str
    """The extra of hf-compat that installs it."""
    default_space: Callable[[Any], dict[str, Any]]
    """A trial to its hyperparameters; the default search space."""
    values: Callable[[Any, Callable[[Any], dict[str, Any]]], dict[str, Any]]
    """A trial and the user's search space to the hyperparameters of the trial."""
    run: Callable[..., BestRun | list[BestRun]]
    """``(trainer, n_trials, direction, release, **kwargs)``: runs the search."""
    report: Callable[[Any, Any, int, dict[str, float]], None]
    """``(trainer, trial, update step, metrics)``: called after each evaluation of a trial's training."""
    run_id: Callable[[Any], str]
    """A trial to its id, which its folder is named after."""


BACKENDS: dict[HPSearchBackend, Backend] = {
    HPSearchBackend.OPTUNA: Backend(
        package="optuna",
        extra="optuna",
        default_space=default_hp_space_optuna,
        values=lambda trial, space: space(trial),
        run=optuna_study.run,
        report=optuna_study.report,
        run_id=lambda trial: str(trial.number),
    ),
    HPSearchBackend.RAY: Backend(
        package="ray.tune",
        extra="ray",
        default_space=default_hp_space_ray,
        values=lambda trial, space: {name: value for name, value in trial.items() if name != "wandb"},
        run=ray_tune.run,
        report=ray_tune.report,
        run_id=lambda trial: ray_tune.trial_id(),
    ),
}
"""The supported backends; without ``backend``, the first one that is installed is used."""


def choose_backend(wanted: str | HPSearchBackend | None) -> HPSearchBackend:
    """Return ``wanted``, or by default the first backend that is installed.

    Raises:
        NotSupportedError: If ``wanted`` is a backend of transformers that is not supported.
        SearchError: If ``wanted``, or all backends, are not installed.
        ValueError: If ``wanted`` is not a backend.
    """
    if wanted is None:
        return _first_installed()
    chosen = HPSearchBackend(wanted)
    if chosen not in BACKENDS:
        raise NotSupportedError(
            f"`backend={chosen.value!r}` is not supported: use 'optuna' or 'ray'; a callback can log their trials."
        )
    if not is_installed(BACKENDS[chosen].package):
        raise SearchError(f"`backend={chosen.value!r}` is not installed. Run: {_install(BACKENDS[chosen])}")
    return chosen


def _first_installed() -> HPSearchBackend:
    for name, backend in BACKENDS.items():
        if is_installed(backend.package):
            return name
    commands = " or: ".join(_install(backend) for backend in BACKENDS.values())
    raise SearchError(f"`hyperparameter_search`: no supported backend is installed. Run: {commands}")


def _install(backend: Backend) -> str:
    return f'pip install "hf-compat[{backend.extra}]"'


def run_id(backend: HPSearchBackend, trial: Trial) -> str:
    """Return the id of ``trial``, which its folder is named after."""
    return BACKENDS[backend].run_id(trial)


def apply_values(args: TrainingArguments, values: Mapping[str, Any], semantics: Semantics) -> None:
    """Set each value on ``args``, cast to the type of the current value.

    A name that ``args`` does not have is ignored with a warning. Values that only an earlier trial set are kept.

    Raises:
        ArgumentsError: If ``args`` is then invalid; the error lists all problems.
    """
    problems = []
    for name, value in values.items():
        if not hasattr(args, name):
            text = "The trial's `%s=%r` is ignored: there is no corresponding field in `TrainingArguments`."
            logger.warning(text, name, value)
            continue
        current = getattr(args, name)
        try:
            setattr(args, name, value if current is None else type(current)(value))
        except (TypeError, ValueError) as error:
            problems.append(Problem(name, value, f"a trial cannot set it: {error}"))
    raise_all([*problems, *find_problems(args, semantics)])
