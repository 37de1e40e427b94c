"""New train loaders during a run, as ``reload_dataloaders_every_n_epochs`` asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["Reloading"]


class Reloading(RunCallback):
    """Asks for a new train loader every ``epochs`` epochs.

    Hooks: ``on_train_epoch_start``.

    Args:
        epochs: Epochs after which the loader is asked for again.
        reload: Asks for it.
    """

    def __init__(self, epochs: int, reload: Callable[[], None]) -> None:
        self._epochs = epochs
        self._reload = reload
        self._last: int | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reload if that is due; the first epoch of a run has a new loader anyway."""
        epoch = trainer.current_epoch
        if self._last is not None and epoch - self._last < self._epochs:
            return
        if self._last is not None:
            self._reload()
        self._last = epoch
