"""The protocols that the engine calls: a run, its hooks inside a window, its optimizer factory, an evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from hf_compat.data.windows import Window

__all__ = ["EvaluationPass", "Host", "HostReference", "Optimization", "WindowHooks"]


class Optimization(Protocol):
    """Creates optimizer and learning-rate schedule of a run, by the Trainer's overridable methods."""

    @property
    def num_training_steps(self) -> int:
        """Update steps of the run, for the schedule."""

    def create_optimizer(self) -> Optimizer:
        """Return a new optimizer for the model, which is wrapped or sharded already."""

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Return a new schedule for ``optimizer``, which the strategy has created from the run's."""

    def create_both(self) -> tuple[Any, Any]:
        """Return optimizer and schedule, for Lightning's ``configure_optimizers``."""


class Host(Protocol):
    """A run, as module and strategy see it; the module holds a weak reference to it, the strategy none."""

    @property
    def optimization(self) -> Optimization:
        """Creates optimizer and schedule."""

    def accumulating(self, *, ends_update: bool, syncs: bool) -> AbstractContextManager[None]:
        """Return the context for forward and backward pass of one batch of a window.

        Args:
            ends_update: Whether the backward pass is the last of its update step.
            syncs: Whether it synchronises gradients over the ranks.
        """

    def training_step(self, batch: dict[str, Any], num_items: Tensor | int | None) -> Tensor:
        """Run forward and backward pass of one batch; return its share of the window's loss, ``()``, detached.

        Args:
            batch: The batch of this rank.
            num_items: Scored items in the window; None if the model does not take their number.
        """

    def original(self, name: str) -> Callable[..., Any]:
        """Return the Trainer's method ``name``, in whose place a module or data module may have its own."""

    def should_stop(self) -> bool:
        """Return whether a callback has requested the end of the epoch or of training."""

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train and evaluate ``wrapped``, the model in the strategy's wrapper; every rank calls it.

        In a fit it is called before the optimizer is created: a sharded model loads the weights of a resumed
        checkpoint here.
        """

    def take_optimizers(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Use ``optimizer`` and ``scheduler``, an engine's wrappers of the run's; the scheduler may be None."""


class WindowHooks(Protocol):
    """The hooks of a run inside a window, for which Lightning has none."""

    def on_next_batch(self, batch: dict[str, Any]) -> None:
        """Begin a batch of a window other than its first."""

    def on_batch_trained(self, pl_trainer: pl.Trainer, loss: Tensor, batch: dict[str, Any]) -> None:
        """Follow the forward and backward pass of a batch, whose share of the window's loss is ``loss``, ``()``."""

    def on_substep_end(self) -> None:
        """End a batch that does not end an update step."""

    def on_optimizer_step_end(self, pl_trainer: pl.Trainer, window: Window) -> None:
        """Follow ``optimizer.step()``, with which ``window`` ends."""


class HostReference:
    """The run of a module or of its data, a weak reference.

    A Lightning callback that copies the module must not copy the Trainer and its datasets.

    Args:
        missing: The error without a run.
    """

    def __init__(self, missing: str) -> None:
        self._missing = missing
        self._reference: weakref.ref[Host] | None = None

    def set(self, host: Host) -> None:
        """Refer to ``host``."""
        self._reference = weakref.ref(host)

    def is_to(self, host: Host) -> bool:
        """Return whether ``host`` is the run."""
        return self._reference is not None and self._reference() is host

    def get(self) -> Host:
        """Return the run.

        Raises:
            TrainerSetupError: If there is none, or it is gone.
        """
        host = None if self._reference is None else self._reference()
        if host is None:
            raise TrainerSetupError(self._missing)
        return host


class EvaluationPass(Protocol):
    """One pass over an evaluation loader."""

    @property
    def batches(self) -> Iterable[Any]:
        """The loader, to be iterated over once."""

    def step(self, inputs: dict[str, Any]) -> Any:
        """Predict one batch, gather the outputs and return the predictions."""

    def finish(self) -> dict[str, Any]:
        """Return the metrics over all batches."""
