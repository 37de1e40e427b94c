"""Training mode before the first training step, as in releases of transformers before 5.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost

__all__ = ["EarlyTrainMode"]


class EarlyTrainMode(RunCallback):
    """Puts the model in training mode as soon as it has an optimizer; later releases leave that to ``training_step``.

    Hooks: ``on_fit_start``.

    Args:
        host: The Trainer.
    """

    def __init__(self, host: RunHost) -> None:
        self._host = host

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the model in training mode."""
        self._host.model.train()
