"""``CurrentOptimizer``: Lightning steps the optimizer that the Trainer has, also if it was assigned later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.engine.internals.strategies import replace_optimizer
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.engine.strategies.base import ModelStrategy
    from hf_compat.trainer.trainer import Trainer

__all__ = ["CurrentOptimizer"]


class CurrentOptimizer:
    """Has the strategy step ``trainer.optimizer``, which an override or a callback may replace; engines step their own.

    Args:
        trainer: The Trainer.
        shards_model: Whether the strategy's wrapper is what accelerate counts as the model.
    """

    def __init__(self, trainer: Trainer, *, shards_model: bool) -> None:
        self._trainer = trainer
        self._shards_model = shards_model
        self._stepped: Any = None

    def give_if_replaced(self, strategy: ModelStrategy) -> None:
        """Give the strategy the Trainer's optimizer if it is another than before; the update step may come next."""
        if self._trainer.optimizer is not self._stepped:
            self.give_to(strategy)

    def give_to(self, strategy: ModelStrategy) -> None:
        """Give the strategy optimizer and schedule: an override that loads their states may have replaced them.

        Raises:
            TrainerSetupError: If the Trainer has no optimizer.
        """
        trainer = self._trainer
        self._stepped = trainer.optimizer
        trainer.accelerator.hold(trainer.model_wrapped if self._shards_model else trainer.model, trainer.optimizer)
        if strategy.engine is not None:
            return
        if trainer.optimizer is None:
            raise TrainerSetupError(
                "`trainer.optimizer` was set to None during training. Assign one, or call `create_optimizer()`."
            )
        if [trainer.optimizer] != strategy.optimizers:
            replace_optimizer(strategy, trainer.optimizer)
        for config in strategy.lr_scheduler_configs:
            config.scheduler = trainer.lr_scheduler  # type: ignore[assignment]  # None if the script has set it
