"""Stopping a run: ``control.should_training_stop`` and Lightning's ``should_stop`` are kept equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.callbacks.firing import EventHost

__all__ = ["Stopping"]


class Stopping(RunCallback):
    """Synchronises both flags after each window and each epoch.

    Hooks: ``on_train_batch_end``, ``on_train_epoch_end``.

    Args:
        host: The Trainer, which has the control.
    """

    def __init__(self, host: EventHost) -> None:
        self._host = host

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Synchronise the flags."""
        self._synchronise(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Synchronise the flags."""
        self._synchronise(trainer)

    def _synchronise(self, trainer: pl.Trainer) -> None:
        if trainer.should_stop:  # set by a Lightning callback, such as EarlyStopping
            self._host.control.should_training_stop = True
        trainer.should_stop = self._host.control.should_training_stop
