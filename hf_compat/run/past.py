"""Models with memory: what the last batch returned is the next one's ``mems``, within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost

__all__ = ["PastState", "fresh_past"]


class PastState(RunCallback):
    """Ends a model's memory with each epoch and with the run.

    Hooks: ``on_train_epoch_start``.

    Args:
        host: The Trainer, whose ``_past`` the memory is.
    """

    def __init__(self, host: RunHost) -> None:
        self._host = host

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the epoch without memory."""
        self._host._past = None

    def end(self) -> None:
        """Keep no memory beyond the run."""
        self._host._past = None


@contextmanager
def fresh_past(host: RunHost) -> Iterator[None]:
    """Run an evaluation without memory, and leave the training's as it was."""
    memory, host._past = host._past, None
    try:
        yield
    finally:
        host._past = memory
