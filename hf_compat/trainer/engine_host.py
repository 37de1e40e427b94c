"""What the engine asks of a run, answered by the Trainer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hf_compat.model_facts import accepts_parameter
from hf_compat.overriding import call_as_defined

__all__ = ["TrainerHost", "TrainerOptimization"]


class TrainerOptimization:
    """Makes optimizer and schedule by the Trainer's override points.

    Args:
        trainer: A run of it has begun.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def num_training_steps(self) -> int:
        """Update steps of the run."""
        return int(self._trainer.run_plan.max_steps)

    def create_optimizer(self) -> Any:
        """Return a new optimizer; the one of an earlier run ended with its engine."""
        trainer = self._trainer
        trainer.optimizer = trainer.lr_scheduler = None
        trainer.create_optimizer()
        return trainer.optimizer

    def create_scheduler(self, optimizer: Any) -> Any:
        """Return a new schedule for ``optimizer``, which is the Trainer's meanwhile."""
        trainer = self._trainer
        trainer.optimizer, trainer.lr_scheduler = optimizer, None
        call_as_defined(trainer.create_scheduler, num_training_steps=self.num_training_steps, optimizer=optimizer)
        return trainer.lr_scheduler

    def create_both(self) -> tuple[Any, Any]:
        """Return optimizer and schedule, with the states of a resumed checkpoint."""
        trainer = self._trainer
        trainer._build_optimizer_and_scheduler()
        return trainer.optimizer, trainer.lr_scheduler


class TrainerHost:
    """A Trainer as a module and a strategy see it; it keeps nothing, so that each can be a new one.

    Args:
        trainer: The Trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def optimization(self) -> TrainerOptimization:
        """What makes the optimizer and the schedule."""
        return TrainerOptimization(self._trainer)

    def training_step(self, batch: Any, num_items: Any) -> Tensor:
        """Run forward and backward on one batch and return its share of the window's loss, ``()``, detached."""
        trainer = self._trainer
        if accepts_parameter(trainer.training_step, "num_items_in_batch"):
            loss: Tensor = trainer.training_step(trainer.model_wrapped, batch, num_items)
        else:
            loss = trainer.training_step(trainer.model_wrapped, batch)
        return loss

    def should_stop(self) -> bool:
        """Return whether a callback asked to end the epoch or the training."""
        return bool(self._trainer._should_stop())

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train and evaluate ``wrapped``; as a fit begins a sharded model gets the weights of a resumed checkpoint."""
        trainer = self._trainer
        trainer._take_wrapper(wrapped)
        facts = trainer._placement.facts
        if trainer.is_in_train and trainer._resume_path is not None and facts.shards_model and not facts.has_engine:
            trainer._load_from_checkpoint(trainer._resume_path)

    def take_optimizers(self, optimizer: Any, scheduler: Any) -> None:
        """Go on with ``optimizer`` and ``scheduler``, and give them the states of a resumed checkpoint."""
        trainer = self._trainer
        trainer.optimizer, trainer.lr_scheduler = optimizer, scheduler
        trainer._resume_optimizer_and_scheduler()
