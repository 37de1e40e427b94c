"""Asking a run to stop: the Trainer's control and Lightning's ``should_stop`` mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.callbacks.firing import EventHost

__all__ = ["Stopping"]


class Stopping(RunCallback):
    """Passes on, after each window and each epoch, what a callback of either library asked for.

    Hooks: ``on_train_batch_end``, ``on_train_epoch_end``.

    Args:
        host: The Trainer, whose control it is.
    """

    def __init__(self, host: EventHost) -> None:
        self._host = host

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Pass it on."""
        self._pass_on(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass it on."""
        self._pass_on(trainer)

    def _pass_on(self, trainer: pl.Trainer) -> None:
        if trainer.should_stop:  # a Lightning callback, such as EarlyStopping, asked for it
            self._host.control.should_training_stop = True
        trainer.should_stop = self._host.control.should_training_stop
