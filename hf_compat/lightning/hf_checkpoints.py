"""``HFCheckpoints``: Hugging Face checkpoint folders by update step, the best one followed, the oldest deleted."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint

from hf_compat.checkpoint import names, publish
from hf_compat.checkpoint.rotation import beyond_limit
from hf_compat.engine.checkpoint_io import HFCheckpointIO
from hf_compat.engine.internals.loops import is_fitting
from hf_compat.errors import TrainerSetupError

__all__ = ["HFCheckpoints"]


class HFCheckpoints(Checkpoint):
    """Saves ``checkpoint-<update step>`` folders, which ``from_pretrained`` reads; for any LightningModule.

    It needs ``lightning.Trainer(plugins=[HFCheckpointIO()])``. With ``monitor``, each validation that is better than
    all before saves a checkpoint too; ``best_model_path`` is its folder, and ``ckpt_path="best"`` finds it. Deleted are
    folders that this run, or the one that it resumes, has saved; the newest and the best are kept.

    Args:
        folder: Where the folders go.
        every_n_steps: Update steps between two of them.
        save_total_limit: How many are kept. Default: all.
        monitor: The name of a metric that validations log; of several ranks, rank 0's counts. NaN is never the best.
            Default: none is followed.
        greater_is_better: Whether a larger value of it is better.

    Attributes:
        best_model_path: The best checkpoint, empty before there is one.
        best_metric: Its metric.
        saved: The folders that are left, oldest first.
        is_saving: Whether a checkpoint is being saved.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_n_steps: int = 500,
        save_total_limit: int | None = None,
        monitor: str | None = None,
        greater_is_better: bool = False,
    ) -> None:
        for name, value in (("every_n_steps", every_n_steps), ("save_total_limit", save_total_limit)):
            if value is not None and value < 1:
                raise TrainerSetupError(f"`{name}={value}`: pass 1 or more.")
        self.folder = Path(folder)
        self.every_n_steps = every_n_steps
        self.save_total_limit = save_total_limit
        self.monitor = monitor
        self.greater_is_better = greater_is_better
        self.best_model_path = ""
        self.best_metric: float | None = None
        self.saved: list[str] = []
        self.is_saving = False
        self._last_step = 0

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the trainer's plugin, and delete what killed processes have left.

        Raises:
            TrainerSetupError: If the trainer has another checkpoint plugin.
        """
        if not isinstance(pl_trainer.strategy.checkpoint_io, HFCheckpointIO):
            raise TrainerSetupError(
                f"HFCheckpoints: {type(pl_trainer.strategy.checkpoint_io).__name__} saves this trainer's checkpoints. "
                "Pass `lightning.Trainer(plugins=[HFCheckpointIO()])`."
            )
        if stage == "fit" and pl_trainer.is_global_zero:
            publish.clean_orphans(self.folder)

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step

    def on_train_batch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Save if an update step was made and it is time."""
        if pl_trainer.global_step != self._last_step and pl_trainer.global_step % self.every_n_steps == 0:
            self.save(pl_trainer)

    def on_validation_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if the metric is the best so far.

        Raises:
            TrainerSetupError: If the validation has not logged it.
        """
        if self.monitor is None or pl_trainer.sanity_checking or not is_fitting(pl_trainer):
            return
        value = pl_trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = ", ".join(sorted(pl_trainer.callback_metrics)) or "none"
            raise TrainerSetupError(
                f"`monitor={self.monitor!r}`: the validation logged no such metric, but {known}. Log it with "
                "`self.log` in `validation_step`."
            )
        # Every rank has to save: a metric that is logged without `sync_dist` is another one on each.
        metric = pl_trainer.strategy.broadcast(float(value))
        if self._is_better(metric):
            self.best_metric, self.best_model_path = metric, str(self._path(pl_trainer))
            self._last_step = -1  # the folder of this update step, if there is one, does not know that it is the best
            self.save(pl_trainer)

    def _is_better(self, metric: float) -> bool:
        if self.best_metric is None or math.isnan(metric):
            return not math.isnan(metric)
        return metric > self.best_metric if self.greater_is_better else metric < self.best_metric

    def save(self, pl_trainer: pl.Trainer) -> str:
        """Save the current update step unless that was done, and delete what is over; return the folder."""
        path = str(self._path(pl_trainer))
        if self._last_step == pl_trainer.global_step and path in self.saved:
            return path
        self._last_step = pl_trainer.global_step
        self.saved = [*(one for one in self.saved if one != path), path]
        over = self._over()
        self.saved = [one for one in self.saved if one not in over]
        self.is_saving = True
        try:
            pl_trainer.save_checkpoint(path)
        finally:
            self.is_saving = False
        for one in over:
            pl_trainer.strategy.remove_checkpoint(one)
        return path

    def _path(self, pl_trainer: pl.Trainer) -> Path:
        return self.folder / names.checkpoint_name(pl_trainer.global_step)

    def _over(self) -> set[str]:
        if self.save_total_limit is None:
            return set()
        every = [Path(one) for one in self.saved]
        found = beyond_limit(every, self.save_total_limit, self.best_model_path or None, protects_newest=True)
        return {str(path) for path in found}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues with."""
        return {"best_model_path": self.best_model_path, "best_metric": self.best_metric, "saved": self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with ``state_dict``."""
        self.best_model_path, self.best_metric = state_dict["best_model_path"], state_dict["best_metric"]
        self.saved = list(state_dict["saved"])
