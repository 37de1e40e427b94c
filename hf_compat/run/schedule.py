"""Stepping the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hf_compat.optim.schedulers import steps_on_metric

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["LRSchedule"]


class LRSchedule:
    """Steps the schedule after each optimizer step.

    A metric-based schedule is stepped by evaluations instead. The schedule is not stepped if the gradient scaler did
    not call the optimizer, because of an infinite gradient; fused optimizers are always called, as in transformers.

    Args:
        trainer: The Trainer.

    Attributes:
        learning_rate: The learning rate of the last optimizer step, which is logged.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.learning_rate: float | None = None

    def step(self) -> None:
        """Step the schedule, and keep the learning rate of the step before."""
        self.learning_rate = self._trainer._get_learning_rate()
        if not self._trainer.accelerator.optimizer_step_was_skipped and not steps_on_metric(self._trainer.lr_scheduler):
            scheduler: Any = self._trainer.lr_scheduler
            with _without_added_groups(scheduler):
                scheduler.step()


def _without_added_groups(scheduler: Any) -> AbstractContextManager[None]:
    """Return a context in which ``scheduler`` sees the groups of parameters that it was created for.

    A callback may add others to the optimizer; they keep the learning rate that it gives them.
    """
    optimizer, rates = getattr(scheduler, "optimizer", None), getattr(scheduler, "base_lrs", None)
    if rates is None or optimizer is None or len(optimizer.param_groups) <= len(rates):
        return nullcontext()
    return _first_groups(optimizer, len(rates))


@contextmanager
def _first_groups(optimizer: Any, count: int) -> Iterator[None]:
    every = optimizer.param_groups
    optimizer.param_groups = every[:count]
    try:
        yield
    finally:
        optimizer.param_groups = every
