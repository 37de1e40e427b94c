"""Hyperparameter search: trainings of the same model with different arguments.

Every run comes through here, and few search: ``tuning`` is imported by those alone.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from hf_compat.checkpoint import publish
from hf_compat.errors import SearchError
from hf_compat.run.best_model import checked_output_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from hf_compat.arguments.enums import HPSearchBackend
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import BestRun, Trial

__all__ = ["output_dir", "release_model", "report", "search", "set_up_trial"]

logger = logging.getLogger(__name__)


def search(
    trainer: Trainer,
    hp_space: Callable[[Any], dict[str, Any]] | None,
    compute_objective: Callable[[dict[str, float]], Any] | None,
    n_trials: int,
    direction: str | list[str],
    backend: str | HPSearchBackend | None,
    hp_name: Callable[[Any], str] | None,
    settings: dict[str, Any],
) -> BestRun | list[BestRun]:
    """Return the best trial; see the Trainer's ``hyperparameter_search``.

    Args:
        trainer: The Trainer.
        hp_space: A trial to names and values of arguments.
        compute_objective: Metrics of an evaluation to the objective, or objectives.
        n_trials: Number of trials.
        direction: ``"minimize"`` or ``"maximize"``, or one per objective.
        backend: The search library.
        hp_name: A trial to the name of its folder.
        settings: Keywords of the library.
    """
    from hf_compat.tuning.backends import BACKENDS, choose_backend
    from hf_compat.tuning.spaces import default_compute_objective

    chosen = choose_backend(backend)
    if trainer.model_init is None:
        raise SearchError(
            "`model_init=None`: for a search you need to pass your model through a model_init function, which creates "
            "a new one for each trial."
        )
    world_size = trainer.args.world_size
    if world_size > 1:
        raise SearchError(
            f"`hyperparameter_search` is not supported with world size {world_size}. Start a single "
            "process, or use `backend='ray'`, which distributes the trials."
        )
    start = trainer.lightning_backend.process_layout.start
    if start is not None:
        raise SearchError(
            f"`hyperparameter_search` is not supported with `lightning`'s `strategy`, which starts {start.processes} "
            "processes. Do not pass `strategy`."
        )
    trainer.hp_space = BACKENDS[chosen].default_space if hp_space is None else hp_space
    trainer.compute_objective = default_compute_objective if compute_objective is None else compute_objective
    trainer.hp_name = hp_name
    trainer.hp_search_backend = chosen
    try:
        return BACKENDS[chosen].run(trainer, n_trials, direction, release_model, **settings)
    finally:
        trainer.hp_search_backend = None


def set_up_trial(trainer: Trainer, trial: Trial | None) -> None:
    """Set the arguments to the values of ``trial``."""
    trainer.run_counters.trial = trial
    if trainer.hp_search_backend is None or trial is None:
        return
    from hf_compat.tuning.backends import BACKENDS, apply_values

    values = BACKENDS[trainer.hp_search_backend].values(trial, trainer.hp_space)
    apply_values(trainer.args, values, trainer.semantics)
    logger.info("Trial: %s", values)
    trainer.run_counters.train_batch_size = trainer.args.train_batch_size
    trainer.create_accelerator_and_postprocess()
    if trainer.args.should_save:
        publish.clean_orphans(checked_output_dir(trainer._get_output_dir(trial)))


def output_dir(trainer: Trainer, trial: Trial | None) -> str:
    """Return the folder of the run's checkpoints; each trial has its own in ``args.output_dir``."""
    folder: str = trainer.args.output_dir
    if trainer.hp_search_backend is None or trial is None:
        return folder
    from hf_compat.tuning.backends import run_id

    name = f"run-{run_id(trainer.hp_search_backend, trial)}" if trainer.hp_name is None else trainer.hp_name(trial)
    return os.path.join(folder, name)


def report(trainer: Trainer, trial: Trial | None, step: int, metrics: dict[str, float]) -> None:
    """Report the metrics at update step ``step`` to the search library, which may stop the trial."""
    if trainer.hp_search_backend is None or trial is None:
        return
    from hf_compat.tuning.backends import BACKENDS

    trainer.objective = trainer.compute_objective(dict(metrics))
    BACKENDS[trainer.hp_search_backend].report(trainer, trial, step, metrics)


def release_model(trainer: Trainer) -> None:
    """Drop the model and its run, to free the memory for the next trial."""
    trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
    trainer.training_run = trainer.deepspeed = None
    trainer.lightning_backend.release()
    handler = trainer.callback_handler
    handler.model = handler.optimizer = handler.lr_scheduler = None
    trainer.accelerator.free_memory()
