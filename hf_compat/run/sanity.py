"""The sanity check: a few batches of an evaluation before training, to see that it works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["SanityCheck"]


class SanityCheck(RunCallback):
    """Runs the sanity check once the optimizer exists, without logging it or changing the run.

    Hooks: ``on_fit_start``.

    Args:
        check: Returns the context of a sanity check.
        evaluate: Evaluates.
    """

    def __init__(self, check: Callable[[], AbstractContextManager[None]], evaluate: Callable[[], object]) -> None:
        self._check = check
        self._evaluate = evaluate

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate."""
        with self._check():
            self._evaluate()
