"""The Ray Tune backend: each trial runs in a process of Ray."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.callbacks import NotebookProgressCallback, ProgressCallback
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.errors import SearchError, require_package
from hf_compat.tuning.spaces import BestRun, best_run

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.trainer import Trainer

__all__ = ["report", "run", "trial_id"]

_REPORT_DRIVEN = ("AsyncHyperBandScheduler", "HyperBandForBOHB", "MedianStoppingRule", "PopulationBasedTraining")
"""Schedulers that stop or change trials depending on the metrics reported during training."""


def _tune() -> ModuleType:
    return require_package("ray.tune", extra="ray", purpose="`hyperparameter_search(backend='ray')`")


def run(
    trainer: Trainer,
    n_trials: int,
    direction: str | list[str],
    release: Callable[[Trainer], None],
    **kwargs: Any,
) -> BestRun:
    """Return the best of ``n_trials`` trials, each run by a copy of ``trainer``.

    Args:
        trainer: A Trainer with a ``model_init``; it has no model afterwards.
        n_trials: Trials to sample from ``trainer.hp_space``.
        direction: ``"minimize"`` or ``"maximize"``.
        release: Frees the trainer's model, so that the next trial has the memory.
        **kwargs: Keywords of ``ray.tune.run``. Default of ``resources_per_trial``: one CPU, and one GPU if the
            Trainer uses one; of ``progress_reporter``: a ``CLIReporter`` that shows the objective.

    Raises:
        SearchError: If there are several directions; if the scheduler needs metrics during training and nothing is
            evaluated then; if no trial reported an objective.
    """
    if isinstance(direction, list):
        raise SearchError(f"`direction={direction!r}`: Ray Tune supports one objective only; use `backend='optuna'`.")
    tune = _tune()
    _check_scheduler(kwargs.get("scheduler"), trainer.args)
    kwargs.setdefault("resources_per_trial", {"cpu": 1, **({"gpu": 1} if trainer.args.n_gpu > 0 else {})})
    kwargs.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))
    release(trainer)
    trainable = tune.with_parameters(_train, trainer=_picklable_copy(trainer))
    analysis = tune.run(trainable, config=trainer.hp_space(None), num_samples=n_trials, **kwargs)
    best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=_scope(trainer.args))
    if best is None:
        raise SearchError(f"No trial reported an objective: see Ray's logs in `{analysis.experiment_path}`.")
    return best_run(best.trial_id, best.last_result["objective"], best.config, analysis)


def _scope(args: TrainingArguments) -> str:
    """Return which reports of a trial count: ``ray_scope``, in newer releases the environment variable RAY_SCOPE."""
    args = for_run(args)
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


def _train(config: dict[str, Any], trainer: Trainer) -> None:
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
        trainer.objective = trainer.compute_objective(metrics)
        _report({**metrics, "objective": trainer.objective, "done": True}, trainer, saves=True)


def report(trainer: Trainer, trial: dict[str, Any], step: int, metrics: dict[str, float]) -> None:
    """Report the metrics and the objective to Ray Tune, with a checkpoint if one is due."""
    _report({**metrics, "objective": trainer.objective}, trainer, saves=trainer.control.should_save)


def _report(metrics: dict[str, Any], trainer: Trainer, *, saves: bool) -> None:
    tune = _tune()
    with tempfile.TemporaryDirectory() as folder:
        if saves:
            trainer._tune_save_checkpoint(checkpoint_dir=folder)
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder) if saves else None)


def trial_id() -> str:
    """Return Ray's id of the trial that this process runs."""
    return str(_tune().get_context().get_trial_id())
