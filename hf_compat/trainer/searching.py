"""Hyperparameter search: trainings of the same model with different arguments.

Every run comes through here, and few search: optuna and Ray are imported by those alone.
"""

from __future__ import annotations

import copy
import difflib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hf_compat.arguments.checks import find_problems
from hf_compat.arguments.enums import HPSearchBackend
from hf_compat.arguments.problems import OTHER_NAMES_OF_FIELDS, Problem, raise_all
from hf_compat.arguments.releases import Semantics, effective_args
from hf_compat.callbacks import NotebookProgressCallback, ProgressCallback
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.distributed.collectives import broadcast_object
from hf_compat.errors import DataError, NotSupportedError, SearchError, described, is_installed, require_package
from hf_compat.overriding import is_overridden

if TYPE_CHECKING:
    import optuna

    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


def release_model(trainer: Trainer) -> None:
    """Drop the model and its run, to free the memory for the next trial."""
    trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
    trainer.training_run = trainer.deepspeed = None
    trainer.lightning_backend.release()
    handler = trainer.callback_handler
    handler.model = handler.optimizer = handler.lr_scheduler = None
    trainer.accelerator.free_memory()


# The default search spaces and the default objective.


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


def check_arguments(trainer: Trainer, hp_space: object, compute_objective: object, direction: object) -> None:
    """Raise before the first trial if an argument of a search cannot be used, or a trial would have no evaluation.

    Raises:
        SearchError: If a function is none, or ``direction`` has another word.
        DataError: If the Trainer has no ``eval_dataset``, and no method of its own that evaluates.
    """
    for name, function in (("hp_space", hp_space), ("compute_objective", compute_objective)):
        if function is not None and not callable(function):
            raise SearchError.also(TypeError)(
                f"`{name}`: {described(function)} cannot be called. Pass a function of "
                f"{'a trial that returns a dict of values' if name == 'hp_space' else 'the metrics'}."
            )
    for word in direction if isinstance(direction, list) else [direction]:
        # optuna has an enum of them, and takes None for `directions`
        if getattr(word, "name", word) not in _DIRECTIONS:
            raise SearchError.also(ValueError)(f"`direction={direction!r}`: pass 'minimize' or 'maximize'.")
    own = (trainer.train, trainer.evaluate, trainer.get_eval_dataloader)
    if trainer.eval_dataset is None and not any(map(is_overridden, own)):
        raise DataError(
            "`eval_dataset=None`: a search compares trials by an evaluation, which requires an eval_dataset. Pass it "
            "to the Trainer."
        )


_DIRECTIONS = ("minimize", "maximize", "MINIMIZE", "MAXIMIZE", None)


def objective_of(trainer: Trainer, metrics: dict[str, float]) -> Any:
    """Return what ``compute_objective`` makes of ``metrics``; to the error of a missing one their names are added."""
    try:
        return trainer.compute_objective(metrics)
    except KeyError as error:
        error.add_note(f"`compute_objective`: the metrics are {', '.join(metrics)}.")
        raise


# The optuna backend: trials run one after another, each of them on all ranks. Rank 0 has the study.


_OPTIMIZE = ("timeout", "n_jobs", "gc_after_trial", "catch")
"""Keywords of ``Study.optimize``; all others are passed to ``create_study``."""


def _optuna() -> ModuleType:
    return require_package("optuna", extra="optuna", purpose="`hyperparameter_search(backend='optuna')`")


def run_optuna(
    trainer: Trainer,
    n_trials: int,
    direction: str | list[str],
    **kwargs: Any,
) -> BestRun | list[BestRun] | None:
    """Return the best of ``n_trials`` trials; with several directions, all Pareto-optimal ones; None but on rank 0.

    Args:
        trainer: A Trainer with a ``model_init``.
        n_trials: Trials to run, not counting those in a stored study.
        direction: ``"minimize"`` or ``"maximize"``, or one of them per objective.
        **kwargs: Keywords of ``optuna.create_study``, and of ``Study.optimize``: ``timeout`` in seconds,
            ``gc_after_trial``, ``catch``.

    Raises:
        SearchError: If ``n_jobs`` is not 1: parallel trials would share one Trainer.
        ValueError: If no trial was completed, as in optuna.
    """
    optuna = _optuna()
    optimize = {name: kwargs.pop(name) for name in _OPTIMIZE if name in kwargs}
    if optimize.get("n_jobs", 1) != 1:
        raise SearchError(
            f"`n_jobs={optimize['n_jobs']}` is not supported: parallel trials would share one Trainer. Remove it, and "
            "start several processes with the same `storage`, `study_name` and `load_if_exists=True` instead."
        )
    if trainer.args.process_index > 0:
        _follow_optuna(trainer, optimize.get("catch", ()))
        return None
    directions = {"directions": direction} if isinstance(direction, list) else {"direction": direction}
    study = optuna.create_study(**directions, **kwargs)

    def objective(trial: Any) -> float | list[float]:
        if trainer.args.world_size > 1:
            trainer.hp_space(trial)  # draws the values
            broadcast_object(optuna.trial.FixedTrial(trial.params, trial.number))
        return _train_optuna_trial(trainer, trial)

    study.optimize(objective, n_trials=n_trials, **optimize)
    broadcast_object(None)
    if len(study.directions) > 1:
        return [best_run(str(trial.number), trial.values, trial.params) for trial in study.best_trials]
    best = study.best_trial
    return best_run(str(best.number), best.value, best.params)


def _follow_optuna(trainer: Trainer, catch: type[Exception] | Iterable[type[Exception]]) -> None:
    """Take part in the trials of rank 0 until it has no more; ``catch`` are the errors after which it goes on."""
    ends_one = (_optuna().TrialPruned, *(catch if isinstance(catch, Iterable) else [catch]))
    while (trial := broadcast_object(None)) is not None:
        with suppress(*ends_one):
            _train_optuna_trial(trainer, trial)


def _train_optuna_trial(trainer: Trainer, trial: optuna.trial.BaseTrial) -> float | list[float]:
    """Train with the hyperparameters of ``trial`` and return the objective of the last evaluation.

    A trial that an error or the user ends keeps its model, as in transformers, since it may have ended the search.
    """
    optuna = _optuna()
    trainer.objective = None
    try:
        trainer.train(trial=trial)
        if trainer.objective is None:
            trainer.objective = objective_of(trainer, trainer.evaluate())
    except optuna.TrialPruned:
        release_model(trainer)
        raise
    objective: float | list[float] = trainer.objective
    release_model(trainer)
    return objective


def report_to_optuna(trainer: Trainer, trial: optuna.Trial, step: int, metrics: dict[str, float]) -> None:
    """Report the objective at update step ``step`` to optuna; stop the training on all ranks if the pruner says so.

    Nothing is reported for several objectives, which optuna cannot prune, or for a trial without a study.

    Raises:
        optuna.TrialPruned: If the trial is pruned, after ``on_train_end``.
    """
    optuna = _optuna()
    prunes = False
    if hasattr(trial, "study") and len(trial.study.directions) == 1:
        trial.report(trainer.objective, step)
        prunes = trial.should_prune()
    if broadcast_object(prunes):  # the other ranks' trials have no study
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        raise optuna.TrialPruned(f"Pruned at update step {step}: the objective was {trainer.objective}.")


# The Ray Tune backend: each trial runs in a process of Ray.


_REPORT_DRIVEN = ("AsyncHyperBandScheduler", "HyperBandForBOHB", "MedianStoppingRule", "PopulationBasedTraining")
"""Schedulers that stop or change trials depending on the metrics reported during training."""


def _tune() -> ModuleType:
    return require_package("ray.tune", extra="ray", purpose="`hyperparameter_search(backend='ray')`")


def run_ray(
    trainer: Trainer,
    n_trials: int,
    direction: str | list[str],
    **kwargs: Any,
) -> BestRun:
    """Return the best of ``n_trials`` trials, each run by a copy of ``trainer``.

    Args:
        trainer: A Trainer with a ``model_init``; it has no model afterwards.
        n_trials: Trials to sample from ``trainer.hp_space``.
        direction: ``"minimize"`` or ``"maximize"``.
        **kwargs: Keywords of ``ray.tune.run``. Default of ``resources_per_trial``: one CPU, and one GPU if the
            Trainer uses one; of ``progress_reporter``: a ``CLIReporter`` that shows the objective.

    Raises:
        SearchError: If there are several directions or several ranks; if the scheduler needs metrics during training
            and nothing is evaluated then; if no trial reported an objective.
    """
    if isinstance(direction, list):
        raise SearchError(f"`direction={direction!r}`: Ray Tune supports one objective only; use `backend='optuna'`.")
    world_size = trainer.args.world_size
    if world_size > 1:
        raise SearchError(
            f"`backend='ray'` is not supported with world size {world_size}: Ray starts a process for each trial. "
            "Start a single one, or use `backend='optuna'`."
        )
    tune = _tune()
    _check_scheduler(kwargs.get("scheduler"), trainer.args)
    kwargs.setdefault("resources_per_trial", {"cpu": 1, **({"gpu": 1} if trainer.args.n_gpu > 0 else {})})
    kwargs.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))
    release_model(trainer)
    trainable = tune.with_parameters(_train_ray_trial, trainer=_picklable_copy(trainer))
    analysis = tune.run(trainable, config=trainer.hp_space(None), num_samples=n_trials, **kwargs)
    best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=_scope(trainer.args))
    if best is None:
        raise SearchError(f"No trial reported an objective: see Ray's logs in `{analysis.experiment_path}`.")
    return best_run(best.trial_id, best.last_result["objective"], best.config, analysis)


def _scope(args: TrainingArguments) -> str:
    """Return which reports of a trial count: ``ray_scope``, in newer releases the environment variable RAY_SCOPE."""
    args = effective_args(args)
    scope = args.ray_scope
    return scope if scope not in (None, "last") else os.environ.get("RAY_SCOPE", "last")


def _check_scheduler(scheduler: object, args: TrainingArguments) -> None:
    names = {base.__name__ for base in type(scheduler).__mro__}
    evaluates, strategy = args.do_eval, args.eval_strategy
    if names.isdisjoint(_REPORT_DRIVEN) or (evaluates and strategy != "no"):
        return
    shown = getattr(strategy, "value", strategy)
    raise SearchError(
        f"`scheduler={type(scheduler).__name__}(...)` needs metrics during training, but nothing is evaluated then "
        f"(`do_eval={evaluates}`, `eval_strategy={shown!r}`): set `eval_strategy='steps'`, or "
        "remove `scheduler`."
    )


def _picklable_copy(trainer: Trainer) -> Trainer:
    """Return a copy of ``trainer`` without the model, optimizer and loaders of an earlier run."""
    copied = copy.copy(trainer)
    copied.callback_handler = copy.copy(trainer.callback_handler)
    for name in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
        setattr(copied.callback_handler, name, None)
    return copied


def _train_ray_trial(config: dict[str, Any], trainer: Trainer) -> None:
    """Train with the hyperparameters in ``config``, from the trial's checkpoint if there is one; report the result."""
    tune = _tune()
    if trainer.pop_callback(NotebookProgressCallback) is not None:  # Ray's process has no notebook
        trainer.add_callback(ProgressCallback)
    trainer.objective = None
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        trainer.train(trial=config)
    else:
        trainer.objective = "resumed"  # a trial with no update steps left must not report again
        with checkpoint.as_directory() as folder:
            saved = next(Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
            trainer.train(resume_from_checkpoint=str(saved), trial=config)
    if trainer.objective is None:
        metrics = trainer.evaluate()
        trainer.objective = objective_of(trainer, metrics)
        _report_to_ray({**metrics, "objective": trainer.objective, "done": True}, trainer, saves=True)


def report_to_ray(trainer: Trainer, trial: dict[str, Any], step: int, metrics: dict[str, float]) -> None:
    """Report the metrics and the objective to Ray Tune, with a checkpoint if one is due."""
    _report_to_ray({**metrics, "objective": trainer.objective}, trainer, saves=trainer.control.should_save)


def _report_to_ray(metrics: dict[str, Any], trainer: Trainer, *, saves: bool) -> None:
    tune = _tune()
    with tempfile.TemporaryDirectory() as folder:
        if saves:
            trainer._tune_save_checkpoint(checkpoint_dir=folder)
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder) if saves else None)


def trial_id() -> str:
    """Return Ray's id of the trial that this process runs."""
    return str(_tune().get_context().get_trial_id())


# The backends of a hyperparameter search: which are installed, how each runs trials, and how a trial is set up.


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
    run: Callable[..., BestRun | list[BestRun] | None]
    """``(trainer, n_trials, direction, **kwargs)``: runs the search."""
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
        run=run_optuna,
        report=report_to_optuna,
        run_id=lambda trial: str(trial.number),
    ),
    HPSearchBackend.RAY: Backend(
        package="ray.tune",
        extra="ray",
        default_space=default_hp_space_ray,
        values=lambda trial, space: {name: value for name, value in trial.items() if name != "wandb"},
        run=run_ray,
        report=report_to_ray,
        run_id=lambda trial: trial_id(),
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
            text = "The trial's `%s=%r` is ignored: there is no corresponding field in `TrainingArguments`.%s"
            near = [f"`{each}`" for each in difflib.get_close_matches(name, vars(args), n=1)]
            meant = OTHER_NAMES_OF_FIELDS.get(name) or "".join(near)
            logger.warning(text, name, value, f" Did you mean {meant}?" if meant else "")
            continue
        current = getattr(args, name)
        try:
            setattr(args, name, value if current is None else type(current)(value))
        except (TypeError, ValueError) as error:
            problems.append(Problem(name, value, f"a trial cannot set it: {error}"))
    raise_all([*problems, *find_problems(args, semantics)])
