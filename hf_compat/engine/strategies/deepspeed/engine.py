"""DeepSpeed's engine around a model, and wrappers of the optimizer and the schedule inside it.

The engine clips gradients, steps the optimizer and, if its config has one, the schedule at the end of an update step.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hf_compat.distributed.launch import Launch
from hf_compat.distributed.processes import import_deepspeed, prepare_process
from hf_compat.errors import TrainerSetupError

__all__ = ["EngineOptimizer", "EngineScheduler", "build_engine"]


class EngineOptimizer(Optimizer):
    """Wraps the optimizer of an engine, which steps it: ``step`` and ``zero_grad`` do nothing.

    Args:
        optimizer: The engine's optimizer.
    """

    def __init__(self, optimizer: Any) -> None:  # ZeRO's optimizers derive from no class of torch's
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups, with this rank's partitions."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The default settings of a parameter group."""
        return getattr(self.optimizer, "defaults", {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of this rank's partitions."""
        return self.optimizer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: the engine has stepped the optimizer."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the engine zeroes the gradients after its step."""


class EngineScheduler:
    """Wraps the schedule of an engine, which steps it: ``step`` does nothing; other attributes are the schedule's.

    Args:
        scheduler: DeepSpeed's schedule, or a schedule for DeepSpeed's optimizer.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: Any) -> None:
        """Do nothing: the engine has stepped the schedule."""

    def get_last_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group; 0 before the first step, which fp16 may skip."""
        try:
            rates: list[Any] = self.scheduler.get_last_lr()
        except AssertionError:  # DeepSpeed's schedules raise before the first step
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
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    parallel_state: ModuleType | None = None,
) -> Any:
    """Return a ``DeepSpeedEngine`` around ``model``.

    Args:
        model: The unwrapped model.
        config: DeepSpeed's config, without ``"auto"`` values.
        device: The device of this rank.
        launch: Rank and world size.
        optimizer: The optimizer; None for the one in ``config``, or for none.
        parameters: The trainable parameters, for an optimizer in ``config``.
        scheduler: Creates a schedule for DeepSpeed's optimizer; None for the one in ``config``, or for none.
        parallel_state: DeepSpeed's groups of ranks that share sequences; None if each has its own.

    Raises:
        TrainerSetupError: If DeepSpeed does not accept the config.
    """
    deepspeed = import_deepspeed(device)
    index = 0 if device.index is None else device.index
    given: dict[str, Any] = {"lr_scheduler": scheduler} if scheduler is not None else {}
    if parallel_state is not None:
        given["mpu"] = parallel_state
    if optimizer is not None:
        given["optimizer"] = optimizer
    elif parameters is not None:
        given["model_parameters"] = parameters
    prepare_process(launch, device)
    try:
        engine, *_ = deepspeed.initialize(args=Namespace(device_rank=index), model=model, config=config, **given)
    except (AssertionError, ValueError, _config_error()) as error:
        raise TrainerSetupError(
            f"`deepspeed`: DeepSpeed does not accept the config for this run. Change what it names: {error}"
        ) from error
    return engine


def _config_error() -> type[Exception]:
    """Return DeepSpeed's error for a config that it refuses."""
    error: type[Exception] = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfigError
    return error
