"""GreedyLR: a schedule that raises the learning rate while a metric improves and lowers it otherwise."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

from torch.optim import Optimizer

from hf_compat.errors import ArgumentsError, ArgumentTypesError

logger = logging.getLogger(__name__)

_STATE_ATTRIBUTES = (
    "factor",
    "min_lrs",
    "max_lrs",
    "patience",
    "verbose",
    "cooldown",
    "warmup",
    "cooldown_counter",
    "warmup_counter",
    "mode",
    "threshold",
    "threshold_mode",
    "best",
    "num_bad_epochs",
    "num_good_epochs",
    "eps",
    "last_epoch",
    "smooth",
    "window_size",
    "reset_start",
    "reset_start_original",
    "_last_lr",
    "_init_lrs",
)


class _RunningMean:
    """The mean of the last ``window_size`` values."""

    def __init__(self, window_size: int) -> None:
        self.window_size = window_size
        self.values: list[float] = []
        self.sum = 0.0

    def add(self, value: float) -> float:
        """Add ``value`` and return the mean."""
        self.values.append(value)
        self.sum += value
        if len(self.values) > self.window_size:
            self.sum -= self.values.pop(0)
        return self.sum / len(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {"window_size": self.window_size, "values": list(self.values), "sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.window_size, self.values, self.sum = state["window_size"], list(state["values"]), state["sum"]


def _one_per_group(name: str, value: float | Sequence[float], groups: int) -> list[float]:
    if not isinstance(value, list | tuple):
        return [value] * groups  # type: ignore[list-item]
    if len(value) != groups:
        raise ArgumentsError(
            [f"`{name}={value!r}` has {len(value)} values for {groups} parameter groups: pass one per group."]
        )
    return list(value)


class GreedyLR:
    """A schedule that is stepped with a metric after each evaluation (https://arxiv.org/abs/2512.14527).

    After more than ``patience`` successive improving values the learning rates are divided by ``factor``, after more
    than ``patience`` others multiplied by it. Its state dict is the same as that of transformers' ``GreedyLR``.

    Args:
        optimizer: The optimizer whose learning rates are set.
        mode: ``"min"`` if smaller values are better, ``"max"`` if larger ones are.
        factor: Multiplier when a learning rate is lowered, below 1.
        patience: Consecutive values to wait before a change.
        threshold: Smallest improvement that counts.
        threshold_mode: Whether it is absolute, ``"abs"``, or relative to the best value, ``"rel"``.
        cooldown: Values ignored after the learning rate was lowered.
        warmup: Values ignored after the learning rate was raised.
        min_lr: Smallest learning rate, for all or per parameter group.
        max_lr: Largest learning rate, for all or per parameter group.
        eps: Smallest change of a learning rate that is applied.
        verbose: Log every change.
        smooth: Use the mean of the last ``window_size`` values.
        window_size: Values in that mean.
        reset_start: Times the learning rates may be lowered at ``min_lr`` before they are reset.

    Raises:
        ArgumentsError: If an argument is out of range.
        ArgumentTypesError: If ``optimizer`` is not a torch optimizer.

    References:
        ``GreedyLR`` of transformers ``optimization.py``, to the last bit.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | list[float] = 1e-3,
        max_lr: float | list[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            given = type(optimizer).__name__
            raise ArgumentTypesError([f"`optimizer` must be a torch optimizer: {given} is not an Optimizer."])
        checks = (
            (factor < 1.0, f"`factor={factor}`: use a value below 1."),
            (mode in ("min", "max"), f"`mode={mode!r}`: use 'min' or 'max'."),
            (threshold_mode in ("rel", "abs"), f"`threshold_mode={threshold_mode!r}`: use 'rel' or 'abs'."),
        )
        problems = [text for valid, text in checks if not valid]
        if problems:
            raise ArgumentsError(problems)
        groups = len(optimizer.param_groups)
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.warmup = warmup
        self.min_lrs = _one_per_group("min_lr", min_lr, groups)
        self.max_lrs = _one_per_group("max_lr", max_lr, groups)
        self.eps = eps
        self.verbose = verbose
        self.smooth = smooth
        self.window_size = window_size
        self.reset_start = self.reset_start_original = reset_start
        self.last_epoch = 0
        self._init_lrs = [group["lr"] for group in optimizer.param_groups]
        self._last_lr = list(self._init_lrs)
        self._reset()

    def _reset(self) -> None:
        """Reset the counters and the best value."""
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.num_good_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._mean = _RunningMean(self.window_size) if self.smooth else None

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Set the learning rates from one value of the metric.

        Args:
            metrics: The value, a number or a tensor.
            epoch: Index of this value. Default: the last one plus 1.
        """
        value = float(metrics)
        if self._mean is not None:
            value = self._mean.add(value)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
        elif self.warmup_counter > 0:
            self.warmup_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
        else:
            self._compare(value)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _compare(self, value: float) -> None:
        if self.is_better(value, self.best):
            self.best = value
            self.num_good_epochs, self.num_bad_epochs = self.num_good_epochs + 1, 0
        else:
            self.num_good_epochs, self.num_bad_epochs = 0, self.num_bad_epochs + 1
        if self.num_good_epochs > self.patience:
            self._increase_lr()
            self.warmup_counter = self.warmup
            self.num_good_epochs = 0
        elif self.num_bad_epochs > self.patience:
            self._decrease_lr()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0

    def is_better(self, current: float, best: float) -> bool:
        """Return whether ``current`` improves on ``best`` by more than the threshold."""
        if self.mode == "min":
            return current < (best * (1.0 - self.threshold) if self.threshold_mode == "rel" else best - self.threshold)
        return current > (best * (1.0 + self.threshold) if self.threshold_mode == "rel" else best + self.threshold)

    def _increase_lr(self) -> None:
        for group, ceiling in zip(self.optimizer.param_groups, self.max_lrs, strict=True):
            old = float(group["lr"])
            new = min(old / self.factor, ceiling)
            if new - old > self.eps:
                self._set(group, new)
        self.reset_start = self.reset_start_original

    def _decrease_lr(self) -> None:
        for group, floor in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, floor)
            if old - new > self.eps:
                self._set(group, new)
        if all(group["lr"] <= floor for group, floor in zip(self.optimizer.param_groups, self.min_lrs, strict=True)):
            self.reset_start -= 1
            if self.reset_start <= 0:
                self._restart()

    def _set(self, group: dict[str, Any], rate: float) -> None:
        if self.verbose:
            logger.info("Evaluation %d: learning rate set to %.4e, was %.4e.", self.last_epoch, rate, group["lr"])
        group["lr"] = rate

    def _restart(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._init_lrs, strict=True):
            group["lr"] = rate
        self._reset()

    def get_last_lr(self) -> list[float]:
        """Return the last learning rate of each parameter group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the optimizer."""
        state = {name: getattr(self, name) for name in _STATE_ATTRIBUTES}
        if self._mean is not None:
            state["_streaming_avg"] = self._mean.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ``state_dict`` and set the optimizer's learning rates to those in it."""
        for name in _STATE_ATTRIBUTES:
            setattr(self, name, state_dict.get(name, getattr(self, name)))
        if "_streaming_avg" in state_dict:
            self._mean = _RunningMean(self.window_size)
            self._mean.load_state_dict(state_dict["_streaming_avg"])
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
