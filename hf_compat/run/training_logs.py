"""Logs during training: averages over the update steps since the last log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_compat.errors import ModelError
from hf_compat.memory import WeakAttribute
from hf_compat.optim.losses import divide_scalar
from hf_compat.overriding import call_as_defined

if TYPE_CHECKING:
    from hf_compat.run.optimization import Norm
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["LossSum", "TrainingLogs"]


class TrainingLogs:
    """Logs mean loss, gradient norm and learning rate if the control says so, at most once per update step.

    Args:
        run: The run, whose backend lets Lightning callbacks monitor what was logged.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._trainer = run, run.trainer
        self._counters = run.counters

    def log_if_due(self, tr_loss: Tensor, grad_norm: Norm, learning_rate: float | None, start_time: float) -> None:
        """Log if the control says so and there was an update step since the last log.

        Args:
            tr_loss: The loss summed since the last log, ``()``; set to 0 in place.
            grad_norm: The last gradient norm, None if it was not computed.
            learning_rate: The learning rate to log. Default: the schedule's last.
            start_time: When the run started, in seconds of ``time.time``.
        """
        trainer = self._trainer
        if trainer.control.should_log and trainer.state.global_step > self._counters.last_logged_step:
            logs = self._logs(tr_loss, grad_norm, learning_rate)
            call_as_defined(trainer.log, ("logs", logs), ("start_time", start_time))
            self._run.backend.publish_metrics(logs)

    def _logs(self, tr_loss: Tensor, grad_norm: Norm, learning_rate: float | None) -> dict[str, float]:
        """Return the logs of the update steps since the last log, and reset the counts."""
        counters = self._counters
        summed = self._trainer.accelerator.gather(tr_loss).mean().item()
        tr_loss -= tr_loss  # in place, as callers have a reference; a NaN stays, as in transformers
        mean = summed / (self._trainer.state.global_step - counters.last_logged_step)
        logs = {"loss": mean if self._trainer.semantics.logs_unrounded_loss else round(mean, 4)}
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = self._trainer._get_learning_rate() if learning_rate is None else learning_rate
        counters.total_loss_scalar += summed
        counters.last_logged_step = self._trainer.state.global_step
        self._trainer.store_flos()
        return logs


_ADDED_AT_ONCE = 64
"""Losses that are added up as soon as there are so many, read or not: each may keep what it is a view of."""


class LossSum:
    """Losses of batches, added up when they are read: together these small operations take half the time.

    Args:
        value: What to begin with, ``()``, where the losses are; None before a run.
        in_float32: Add them up in ``value``'s type; else in that of the losses if it is wider.
    """

    def __init__(self, value: Tensor | None = None, *, in_float32: bool = True) -> None:
        self._value = value
        self._in_float32 = in_float32
        self._added: list[tuple[Tensor, int | None]] = []

    @property
    def value(self) -> Tensor | None:
        """The sum, ``()``; it may be set, or changed in place."""
        if self._added:
            self._add_up()
        return self._value

    @value.setter
    def value(self, value: Tensor | None) -> None:
        self._added.clear()
        self._value = value

    def add(self, loss: Tensor, steps: int | None) -> None:
        """Add the loss of a batch.

        Args:
            loss: ``()``; it must not be written to later.
            steps: If it is NaN or infinite, add the mean of the losses before over so many update steps in its place.
                None: add it whatever it is.

        Raises:
            ModelError: If it is on another device.
        """
        assert self._value is not None, "set as the run begins"
        if self._value.device != loss.device:
            raise ModelError(
                f"Calculated loss must be on the original device: it is on {loss.device}, but training runs on "
                f"{self._value.device}. Return the loss on the device of the inputs."
            )
        self._added.append((loss, steps))
        if len(self._added) == _ADDED_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        summed = self._value
        assert summed is not None, "set as the run begins"
        for loss, steps in self._added:
            if steps is not None:
                # `where` instead of a branch, which would synchronise with the device. NaN and inf less themselves are
                # NaN, which is not equal to itself: two kernels, where torch.isfinite launches four.
                difference = loss - loss
                loss = loss.where(difference == difference, divide_scalar(summed, steps))
            if self._in_float32:
                summed += loss
            else:
                summed = summed + loss
        self.value = summed
