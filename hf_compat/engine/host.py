"""What the engine asks of a run: a module and a strategy of their training, a loop of its evaluation."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

__all__ = ["EvaluationPass", "Host", "Optimization"]


class Optimization(Protocol):
    """Makes the optimizer and the learning-rate schedule of one run, by the Trainer's own override points."""

    @property
    def num_training_steps(self) -> int:
        """Update steps of the run, which a schedule goes by."""

    def create_optimizer(self) -> Any:
        """Return a new optimizer of the model, which is wrapped or sharded by now."""

    def create_scheduler(self, optimizer: Any) -> Any:
        """Return a new schedule for ``optimizer``, the one that the strategy made of the host's."""

    def create_both(self) -> tuple[Any, Any]:
        """Return optimizer and schedule, as Lightning's ``configure_optimizers`` asks for them."""


class Host(Protocol):
    """A run, as a module and a strategy see it.

    A module holds it weakly, and nobody keeps a reference of its own.
    """

    @property
    def optimization(self) -> Optimization:
        """What makes the optimizer and the schedule."""

    @property
    def model_wrapped(self) -> nn.Module:
        """What is trained: the model in what the strategy put around it."""

    def training_step(self, batch: Any, num_items: Any) -> Tensor:
        """Run forward and backward on one batch; return its share of the window's loss, ``()``, detached.

        Args:
            batch: What this rank gets in one forward pass.
            num_items: Scored items in the whole window; None if the model does not ask.
        """

    def should_stop(self) -> bool:
        """Return whether a callback asked to end the epoch or the training."""

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train and evaluate ``wrapped``, the model in what the strategy put around it; every rank calls it.

        In a fit that is before there is an optimizer: a sharded model gets the weights of a resumed checkpoint here.
        """

    def take_optimizers(self, optimizer: Any, scheduler: Any) -> None:
        """Go on with ``optimizer`` and ``scheduler``, which an engine made of the host's; the scheduler may be None."""


class EvaluationPass(Protocol):
    """One pass over an evaluation loader."""

    batches: Any

    def step(self, inputs: Any) -> None:
        """Predict and gather one batch."""

    def finish(self) -> dict[str, Any]:
        """Return the metrics of all batches."""
