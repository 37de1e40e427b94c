"""DeepSpeed's engine around a model, and what stands for the optimizer and the schedule inside it.

The engine clips, steps, and where its config says so schedules, all in the backward pass that ends an update step.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hf_compat.distributed.deepspeed import import_deepspeed, prepare_process
from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError

__all__ = ["EngineOptimizer", "EngineScheduler", "build_engine"]


class EngineOptimizer(Optimizer):
    """The optimizer inside an engine, which steps it: ``step`` and ``zero_grad`` do nothing.

    Args:
        optimizer: DeepSpeed's.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups, of the parts that this rank updates."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The settings of a parameter group that names none."""
        return getattr(self.optimizer, "defaults", {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's part."""
        return self.optimizer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over a state of :meth:`state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: the backward pass has stepped."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the engine empties its gradients as it steps."""


class EngineScheduler:
    """The schedule inside an engine, which steps it: ``step`` does nothing; all else is the schedule's own.

    Args:
        scheduler: DeepSpeed's, or the one that was made for DeepSpeed's optimizer.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: Any) -> None:
        """Do nothing: the backward pass has stepped."""

    def get_last_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group; 0 before the first step, which fp16 may put off."""
        try:
            rates: list[Any] = self.scheduler.get_last_lr()
        except AssertionError:  # DeepSpeed's own schedules know none yet
            return [0 for _ in self.scheduler.optimizer.param_groups]
        return rates

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # while it is copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def build_engine(
    model: nn.Module,
    config: dict[str, Any],
    *,
    device: torch.device,
    launch: Launch,
    optimizer: Optimizer | None = None,
    parameters: list[nn.Parameter] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
) -> Any:
    """Return a ``DeepSpeedEngine`` around ``model``.

    Args:
        model: The model itself.
        config: DeepSpeed's config, without any ``"auto"``.
        device: The device of this rank.
        launch: Which rank this is.
        optimizer: Ours; None for the one in ``config``, or for none.
        parameters: What an optimizer of ``config`` trains.
        scheduler: Returns a schedule for DeepSpeed's optimizer; None for the one in ``config``, or for none.

    Raises:
        TrainerSetupError: If DeepSpeed refuses the config.
    """
    deepspeed = import_deepspeed(device)
    index = 0 if device.index is None else device.index
    given: dict[str, Any] = {"lr_scheduler": scheduler} if scheduler is not None else {}
    if optimizer is not None:
        given["optimizer"] = optimizer
    elif parameters is not None:
        given["model_parameters"] = parameters
    prepare_process(launch, device)
    try:
        engine, *_ = deepspeed.initialize(args=Namespace(device_rank=index), model=model, config=config, **given)
    except (AssertionError, ValueError) as error:
        raise TrainerSetupError(f"`deepspeed`: DeepSpeed refuses its config for this run: {error}") from error
    return engine
