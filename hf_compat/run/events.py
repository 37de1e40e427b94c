"""The events of ``TrainerCallback``, fired in Lightning's hooks in transformers' order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Optimizer

from hf_compat.callbacks.firing import close_progress_bars, fire
from hf_compat.data.windows import Window
from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost

__all__ = ["HOOKS", "Events"]

HOOKS: dict[str, tuple[str, ...]] = {
    "on_train_start": ("on_train_begin",),
    "on_train_epoch_start": ("on_epoch_begin",),
    "on_train_batch_start": ("on_step_begin",),
    "on_substep_end": ("on_substep_end",),
    "on_before_optimizer_step": ("on_pre_optimizer_step",),
    "on_optimizer_step_end": ("on_optimizer_step",),
    "on_train_batch_end": ("on_step_end", "on_log", "on_evaluate", "on_save"),
    "on_validation_batch_end": ("on_prediction_step",),
    "on_train_epoch_end": ("on_epoch_end", "on_log", "on_evaluate", "on_save"),
    "on_train_end": ("on_log", "on_train_end"),
}
"""Hook → the events of ``TrainerCallback`` fired in it: by :class:`Events`; logs, evaluations, saves and the end by the
Trainer's methods that ``Flow`` calls in these hooks; prediction steps by the evaluation session."""


class Events(RunCallback):
    """Fires the events of ``TrainerCallback``.

    Hooks: those of ``HOOKS`` except the evaluation's and ``on_train_end``.

    Args:
        host: The Trainer.
    """

    def __init__(self, host: RunHost) -> None:
        self._host = host

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_train_begin``."""
        fire(self._host, "on_train_begin")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_epoch_begin``."""
        fire(self._host, "on_epoch_begin")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Window, batch_idx: int
    ) -> None:
        """Fire ``on_step_begin``; Lightning's batch is a window."""
        self._host.current_gradient_accumulation_steps = len(batch.batches)
        fire(self._host, "on_step_begin")

    def on_substep_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_substep_end``."""
        fire(self._host, "on_substep_end")

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Fire ``on_pre_optimizer_step``."""
        fire(self._host, "on_pre_optimizer_step")

    def on_optimizer_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, window: Window) -> None:
        """Fire ``on_optimizer_step``."""
        fire(self._host, "on_optimizer_step")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Fire ``on_step_end`` if the window ended with an update step."""
        if pl_module.made_update:
            fire(self._host, "on_step_end")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_epoch_end``."""
        fire(self._host, "on_epoch_end")

    def end(self) -> None:
        """Close the bars of a run that ended without ``on_train_end``."""
        close_progress_bars(self._host)
