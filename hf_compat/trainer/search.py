"""The Trainer's hyperparameter search: the same training again and again with other arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_compat.arguments.enums import HPSearchBackend
from hf_compat.checkpoint import names, publish
from hf_compat.checkpoint.writer import Part
from hf_compat.errors import SearchError
from hf_compat.trainer.batch_size import free_memory
from hf_compat.trainer.safekeeping import SafekeepingMethods
from hf_compat.tuning.backends import BACKENDS, choose_backend
from hf_compat.tuning.spaces import BestRun, default_compute_objective
from hf_compat.tuning.values import apply_values

__all__ = ["SearchMethods"]

logger = logging.getLogger(__name__)


class SearchMethods(SafekeepingMethods):
    """``hyperparameter_search``, and what a trial's training does for it."""

    hp_space: Callable[[Any], dict[str, Any]]
    """A trial to the values that it tries; for Ray, called once with None for what to draw from."""
    compute_objective: Callable[[dict[str, float]], float | list[float]]
    """Metrics of an evaluation to what is compared."""
    objective: Any = None
    """What the last evaluation of the trial gave; None before."""

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Train ``n_trials`` times with arguments that a search library chooses; return the best trial.

        Afterwards ``args`` hold the last trial's values, and the Trainer has no model until the next ``train``.

        Args:
            hp_space: A trial to argument names and values. Default: learning rate, epochs, seed and batch size.
            compute_objective: Metrics of an evaluation to the number, or numbers, to compare. Default: the sum of the
                metrics, the loss if there are none.
            n_trials: How many trainings.
            direction: ``"minimize"`` or ``"maximize"``; with optuna also a list, one per objective.
            backend: ``"optuna"`` or ``"ray"``. Default: the first that is installed.
            hp_name: A trial to the name of its folder in ``output_dir``. Default: ``run-<id>``.
            **kwargs: Keywords of ``optuna.create_study`` and ``Study.optimize``, or of ``ray.tune.run``.

        Returns:
            The best trial; with several objectives, every trial that no other is better than in all of them.

        Raises:
            NotSupportedError: If ``backend`` is not carried out.
            SearchError: If there is no ``model_init``, the library is not installed, or it cannot do what is asked.
        """
        chosen = choose_backend(backend)
        if self.model_init is None:
            raise SearchError(
                "`model_init=None`: `hyperparameter_search` makes a new model in each trial; pass a function."
            )
        if self.args.world_size > 1:
            raise SearchError(
                f"`hyperparameter_search` runs in one process, but this run has {self.args.world_size}. Start it with "
                "one, or let `backend='ray'` share the trials out."
            )
        if self._placement.start is not None:
            raise SearchError(
                "`hyperparameter_search` runs in one process, but `lightning`'s `strategy` starts "
                f"{self._placement.start.processes}: leave it out."
            )
        self.hp_space = BACKENDS[chosen].default_space if hp_space is None else hp_space
        self.compute_objective = default_compute_objective if compute_objective is None else compute_objective
        self.hp_name = hp_name
        self.hp_search_backend = chosen
        try:
            return BACKENDS[chosen].run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None

    def _hp_search_setup(self, trial: Any) -> None:
        """Give ``args`` the values that ``trial`` tries."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        values = BACKENDS[self.hp_search_backend].values(trial, self.hp_space)
        apply_values(self.args, values, self.semantics)
        logger.info("Trial: %s", values)
        self._train_batch_size = self.args.train_batch_size
        self.create_accelerator_and_postprocess()
        if self.args.should_save:
            publish.clean_orphans(self._get_output_dir(trial))

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tell the search library what the evaluation at update step ``step`` gave; it may end the training."""
        if self.hp_search_backend is None or trial is None:
            return
        self.objective = self.compute_objective(dict(metrics))
        BACKENDS[self.hp_search_backend].report(self, trial, step, metrics)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint that Ray may go on from into ``checkpoint_dir``."""
        folder = Path(checkpoint_dir, names.checkpoint_name(self.state.global_step))
        parts = [Part(lambda staged: self.save_model(str(staged), _internal_call=True))]
        if self.args.should_save:
            parts.append(Part(lambda staged: self._save_optimizer_and_scheduler(str(staged))))
            parts.append(Part(self._save_state))
        self._checkpoints.write_alone(folder, parts, step=self.state.global_step)

    def _release_model(self) -> None:
        """Let go of the model and the run around it, so that the next trial has the memory."""
        self.model = self.model_wrapped = self.optimizer = self.lr_scheduler = None
        self.lightning_trainer = self.lightning_module = self._placed_model = None
        self.callback_handler.model = self.callback_handler.optimizer = self.callback_handler.lr_scheduler = None
        free_memory()

    _placed_model: Any = None
