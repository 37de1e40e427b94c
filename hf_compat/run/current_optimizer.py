"""``CurrentOptimizer``: Lightning steps the optimizer that the Trainer has, whoever assigned it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.engine.callbacks import RunCallback
from hf_compat.engine.internals.strategies import replace_optimizer
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch import Tensor

    from hf_compat.engine.strategies.base import ModelStrategy
    from hf_compat.run.host import RunHost

__all__ = ["CurrentOptimizer"]


class CurrentOptimizer(RunCallback):
    """Has the strategy step ``trainer.optimizer``, which an override or a callback may replace; engines step their own.

    Hooks: ``on_fit_start``, ``on_batch_trained``.

    Args:
        host: The Trainer.
        shards_model: Whether the strategy's wrapper is what accelerate counts as the model.
    """

    def __init__(self, host: RunHost, *, shards_model: bool) -> None:
        self._host = host
        self._shards_model = shards_model
        self._stepped: Any = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hand over optimizer and schedule: an override that loads their states may have replaced them."""
        self._hand_over(trainer.strategy)  # type: ignore[arg-type]

    def on_batch_trained(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor, batch: dict[str, Any]
    ) -> None:
        """Hand them over again if the Trainer has another optimizer than before; the update step may come next."""
        if self._host.optimizer is not self._stepped:
            self._hand_over(trainer.strategy)  # type: ignore[arg-type]

    def _hand_over(self, strategy: ModelStrategy) -> None:
        host = self._host
        self._stepped = host.optimizer
        host.accelerator.hold(host.model_wrapped if self._shards_model else host.model, host.optimizer)
        if strategy.engine is not None:
            return
        if host.optimizer is None:
            raise TrainerSetupError(
                "`trainer.optimizer` was set to None during training. Assign one, or call `create_optimizer()`."
            )
        if [host.optimizer] != strategy.optimizers:
            replace_optimizer(strategy, host.optimizer)
        for config in strategy.lr_scheduler_configs:
            config.scheduler = host.lr_scheduler
