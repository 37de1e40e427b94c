"""``PreparedOptimizer`` and ``PreparedSchedule``: a script's own, beside the run's, after ``accelerator.prepare``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from hf_compat.engine.precision import scaled_step

if TYPE_CHECKING:
    from hf_compat.accelerator.accelerator import Accelerator

__all__ = ["PreparedOptimizer", "PreparedSchedule"]


class PreparedOptimizer(Optimizer):
    """An optimizer that updates and zeroes gradients only where an update step ends, with fp16 by the scaler.

    Args:
        optimizer: The optimizer.
        accelerator: Tells whether the current backward pass ends an update step.

    Attributes:
        optimizer: The optimizer itself.
        step_was_skipped: Whether the scaler skipped the last step, because of an infinite gradient.

    References:
        As accelerate ``optimizer.py`` ``AcceleratedOptimizer``.
    """

    def __init__(self, optimizer: Optimizer, accelerator: Accelerator) -> None:
        self.optimizer = optimizer
        self.step_was_skipped = False
        self._accelerator = accelerator

    @property
    def state(self) -> Any:
        """The optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The optimizer's parameter groups."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> Any:
        """The optimizer's defaults."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: Any) -> None:
        self.optimizer.defaults = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients if the update step has ended."""
        if self._accelerator.sync_gradients:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the parameters if the update step has ended."""
        if not self._accelerator.sync_gradients:
            return
        scaler, given = self._accelerator.scaler, () if closure is None else (closure,)
        if scaler is None:
            self.optimizer.step(*given)
        else:
            _, self.step_was_skipped = scaled_step(scaler, self.optimizer, *given)

    def train(self) -> None:
        """Put a schedule-free optimizer in training mode."""
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()  # type: ignore[attr-defined]

    def eval(self) -> None:
        """Put a schedule-free optimizer in evaluation mode."""
        if callable(getattr(self.optimizer, "eval", None)):
            self.optimizer.eval()  # type: ignore[attr-defined]


class PreparedSchedule:
    """A learning-rate schedule that steps only where an update step ends.

    It then steps once for each rank, or once with ``split_batches``.

    Args:
        schedule: The schedule.
        accelerator: Tells whether the current backward pass ends an update step.
        optimizers: The prepared optimizers that it may belong to.

    Attributes:
        scheduler: The schedule itself.
        optimizers: The prepared optimizer of the schedule, if there is one.

    References:
        As accelerate ``scheduler.py`` ``AcceleratedScheduler``, which counts the batches of all ranks unless these
        share one batch.
    """

    def __init__(self, schedule: Any, accelerator: Accelerator, optimizers: Iterable[PreparedOptimizer]) -> None:
        self.scheduler = schedule
        self.optimizers = [item for item in optimizers if schedule.optimizer in (item, item.optimizer)]
        self._accelerator = accelerator

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the schedule if the update step has ended and was not skipped."""
        accelerator = self._accelerator
        if not accelerator.sync_gradients or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        for _ in range(1 if accelerator.split_batches else accelerator.num_processes):
            total = getattr(self.scheduler, "total_steps", None)
            if total is None or self.scheduler._step_count <= total:
                self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)
