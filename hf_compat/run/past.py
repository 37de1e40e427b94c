"""The past state of models with memory: an output of one batch is the next batch's ``mems``, within an epoch."""

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
    """Clears the past state at the start of each epoch, and deletes it at the end of the run.

    Hooks: ``on_train_epoch_start``.

    Args:
        host: The Trainer, which has the state as ``_past`` while there is one, as transformers 4.
    """

    def __init__(self, host: RunHost) -> None:
        self._host = host

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Clear the past state."""
        self._host._past = None

    def end(self) -> None:
        """Delete the past state."""
        vars(self._host).pop("_past", None)


@contextmanager
def fresh_past(host: RunHost) -> Iterator[None]:
    """Context for an evaluation: starts without past state, and restores that of the training, if there is one."""
    outside = {name: value for name, value in vars(host).items() if name == "_past"}
    host._past = None
    try:
        yield
    finally:
        vars(host).pop("_past", None)
        vars(host).update(outside)
