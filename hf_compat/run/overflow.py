"""``debug="underflow_overflow"``: reporting the first infinity or NaN in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback
from hf_compat.overflow import DebugUnderflowOverflow

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["OverflowDebug"]


class OverflowDebug(RunCallback):
    """Watches the module's ``model`` during a fit, and stops it at the first infinity or NaN.

    Hooks: ``setup``. Works in any Lightning trainer whose module has a ``model``.
    """

    def __init__(self) -> None:
        self._watch: DebugUnderflowOverflow | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Start watching."""
        if stage == "fit":
            self._watch = DebugUnderflowOverflow(pl_module.model)  # type: ignore[arg-type]

    def end(self) -> None:
        """Stop watching."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.remove()
