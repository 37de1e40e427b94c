"""Creating optimizer and schedule of a run with the Trainer's overridable methods."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from hf_compat.errors import TrainerSetupError
from hf_compat.optim.in_backward import updates_in_backward
from hf_compat.overriding import call_as_defined

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from hf_compat.run.host import RunHost

__all__ = ["RunOptimization"]


class RunOptimization:
    """Implements ``Optimization`` of :mod:`hf_compat.engine.host`.

    Args:
        host: The Trainer.
        num_training_steps: Update steps of the run, warm-up included.
    """

    def __init__(self, host: RunHost, num_training_steps: int) -> None:
        self._host = host
        self.num_training_steps = num_training_steps

    def create_optimizer(self) -> Optimizer:
        """Create and return a new optimizer; that of an earlier run belongs to its engine."""
        self._host.optimizer = self._host.lr_scheduler = None
        self._host.create_optimizer()
        return self._host.optimizer  # type: ignore[no-any-return]

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Create and return a new schedule for ``optimizer``, which becomes the Trainer's."""
        self._host.optimizer, self._host.lr_scheduler = optimizer, None
        call_as_defined(self._host.create_scheduler, num_training_steps=self.num_training_steps, optimizer=optimizer)
        return self._host.lr_scheduler  # type: ignore[no-any-return]

    def create_both(self) -> tuple[Any, Any]:
        """Create and return optimizer and schedule, with the methods that the emulated release calls.

        Raises:
            TrainerSetupError: If there is an optimizer, of another model.
        """
        host = self._host
        _check_parameters(host)
        if host.semantics.creates_scheduler_apart:
            host.create_optimizer()
            host.create_scheduler(num_training_steps=self.num_training_steps)
        else:
            host.create_optimizer_and_scheduler(num_training_steps=self.num_training_steps)
        _show_inner(host.optimizer)
        return host.optimizer, host.lr_scheduler


def _check_parameters(host: RunHost) -> None:
    """Raise if the optimizer that there is updates none of the model's parameters, so that training had no effect."""
    optimizer = host.optimizer
    if not isinstance(optimizer, Optimizer) or updates_in_backward(optimizer):
        return
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if updated.isdisjoint(map(id, host.model.parameters())):
        raise TrainerSetupError(
            f"`trainer.optimizer` ({type(optimizer).__name__}) updates no parameter of `trainer.model`. If you "
            "replaced the model, set `trainer.optimizer = trainer.lr_scheduler = None` before `train`, which then "
            "creates new ones; if you passed `optimizers`, create them from the parameters of this model."
        )


def _show_inner(optimizer: Any) -> None:
    """Let scripts read ``trainer.optimizer.optimizer``, which is upstream's way from its wrapper to the optimizer.

    Here there is no wrapper, so that it is the optimizer itself; one that wraps another keeps what it shows. None of
    torch's state dicts, copies and pickles contains the attribute. It is a weak reference, so that the states of an
    optimizer that nothing else refers to are freed at once.
    """
    if isinstance(optimizer, Optimizer) and not hasattr(optimizer, "optimizer"):
        optimizer.optimizer = weakref.proxy(optimizer)  # type: ignore[attr-defined]
