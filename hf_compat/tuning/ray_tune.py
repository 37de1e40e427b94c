"""Trials chosen by Ray Tune, each in a process of Ray's."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_compat.callbacks import NotebookProgressCallback, ProgressCallback
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.errors import SearchError, require_package
from hf_compat.tuning.spaces import BestRun

__all__ = ["report", "run", "trial_id"]

_STEERING = ("AsyncHyperBandScheduler", "HyperBandForBOHB", "MedianStoppingRule", "PopulationBasedTraining")
"""Schedulers that stop or change trials by what these report while they train."""


def _tune() -> Any:
    return require_package("ray.tune", extra="ray", purpose="`hyperparameter_search(backend='ray')`")


def run(
    trainer: Any, n_trials: int, direction: str | list[str], release: Callable[[Any], None], **kwargs: Any
) -> BestRun:
    """Return the best of ``n_trials`` trainings of copies of ``trainer``.

    Args:
        trainer: A Trainer with a ``model_init``; it has no model afterwards.
        n_trials: How many configurations to draw from ``trainer.hp_space``.
        direction: ``"minimize"`` or ``"maximize"``.
        release: Lets go of the trainer's model, so that the next trial has the memory.
        **kwargs: Keywords of ``ray.tune.run``. Default of ``resources_per_trial``: one CPU and, where the Trainer
            trains on one, one GPU; of ``progress_reporter``: a ``CLIReporter`` that shows the objective.

    Raises:
        SearchError: If there are several directions; if a scheduler goes by reports and nothing is evaluated while
            training; if no trial reported an objective.
    """
    if isinstance(direction, list):
        raise SearchError(f"`direction={direction!r}`: Ray Tune takes one objective; use `backend='optuna'`.")
    tune = _tune()
    _check_scheduler(kwargs.get("scheduler"), trainer.args)
    kwargs.setdefault("resources_per_trial", {"cpu": 1, **({"gpu": 1} if trainer.args.n_gpu > 0 else {})})
    kwargs.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))
    release(trainer)
    trainable = tune.with_parameters(_train, trainer=_without_run(trainer))
    analysis = tune.run(trainable, config=trainer.hp_space(None), num_samples=n_trials, **kwargs)
    best = analysis.get_best_trial(metric="objective", mode=direction[:3], scope=_scope(trainer.args))
    if best is None:
        raise SearchError(f"No trial reported an objective; Ray's logs are in `{analysis.experiment_path}`.")
    return BestRun(best.trial_id, best.last_result["objective"], best.config, analysis)


def _scope(args: Any) -> str:
    """Return by which of its reports a trial is judged: ``ray_scope``, in newer releases the variable RAY_SCOPE."""
    return args.ray_scope if args.ray_scope not in (None, "last") else os.environ.get("RAY_SCOPE", "last")


def _check_scheduler(scheduler: Any, args: Any) -> None:
    names = {base.__name__ for base in type(scheduler).__mro__}
    if names.isdisjoint(_STEERING) or (args.do_eval and args.eval_strategy != "no"):
        return
    raise SearchError(
        f"`scheduler={type(scheduler).__name__}(...)` goes by what trials report while they train, but nothing is "
        f"evaluated then (`do_eval={args.do_eval}`, `eval_strategy={args.eval_strategy.value!r}`). Set "
        "`eval_strategy='steps'`, or leave the scheduler out."
    )


def _without_run(trainer: Any) -> Any:
    """Return a copy of ``trainer`` that can be sent to another process: what a past run holds open is left out."""
    sent = copy.copy(trainer)
    sent.callback_handler = copy.copy(trainer.callback_handler)
    for name in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
        setattr(sent.callback_handler, name, None)
    return sent


def _train(config: dict[str, Any], trainer: Any) -> None:
    """Train with the values of ``config``, from the trial's checkpoint if Ray goes on with one; report at the end."""
    tune = _tune()
    if trainer.pop_callback(NotebookProgressCallback) is not None:  # Ray's process has no notebook
        trainer.add_callback(ProgressCallback)
    trainer.objective = None
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        trainer.train(trial=config)
    else:
        trainer.objective = "resumed"  # a run that has nothing left to do must not report once more
        with checkpoint.as_directory() as folder:
            saved = next(Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
            trainer.train(resume_from_checkpoint=str(saved), trial=config)
    if trainer.objective is None:
        metrics = trainer.evaluate()
        trainer.objective = trainer.compute_objective(metrics)
        _report({**metrics, "objective": trainer.objective, "done": True}, trainer, saves=True)


def report(trainer: Any, trial: Any, step: int, metrics: dict[str, float]) -> None:
    """Tell Ray Tune the metrics and the objective, with a checkpoint where one is due."""
    _report({**metrics, "objective": trainer.objective}, trainer, saves=trainer.control.should_save)


def _report(metrics: dict[str, Any], trainer: Any, *, saves: bool) -> None:
    tune = _tune()
    with tempfile.TemporaryDirectory() as folder:
        if saves:
            trainer._tune_save_checkpoint(checkpoint_dir=folder)
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder) if saves else None)


def trial_id() -> str:
    """Return Ray's id of the trial that this process runs."""
    return str(_tune().get_context().get_trial_id())
