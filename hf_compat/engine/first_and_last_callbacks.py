"""The first and the last callback of a ``lightning.Trainer``."""

from __future__ import annotations

from collections.abc import Callable

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint

__all__ = ["FirstCallback", "LastCallback"]


LastCallback = Checkpoint
"""A callback that Lightning calls after all others, and beside which it adds no ``ModelCheckpoint``; does nothing."""


class FirstCallback(pl.Callback):
    """Begins a run before any callback is set up; the first callback of a ``lightning.Trainer``.

    Args:
        begin: Called with the Lightning trainer and the module when a fit or an evaluation is set up.
    """

    def __init__(self, begin: Callable[[pl.Trainer, pl.LightningModule], None]) -> None:
        self._begin = begin

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin."""
        self._begin(pl_trainer, pl_module)
