"""Logs while a run trains: what the update steps since the last log come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_compat.engine.callbacks import RunCallback
from hf_compat.overriding import call_as_defined

if TYPE_CHECKING:
    from hf_compat.run.clipping import Norm
    from hf_compat.run.host import RunHost
    from hf_compat.run.progress import Counts

__all__ = ["TrainingLogs"]


class TrainingLogs(RunCallback):
    """Logs mean loss, gradient norm and learning rate when the control asks for it, at most once an update step.

    Defines no hooks: ``Flow`` calls it, through the Trainer's one override point.

    Args:
        host: The Trainer.
        counts: What was counted since the last log.
    """

    def __init__(self, host: RunHost, counts: Counts) -> None:
        self._host = host
        self._counts = counts

    def log_if_due(self, tr_loss: Tensor, grad_norm: Norm, learning_rate: float | None, start_time: float) -> None:
        """Log if it is asked for and an update step was made since the last log.

        Args:
            tr_loss: The loss summed since the last log, ``()``; set to 0 in place.
            grad_norm: The last gradient norm, None if it was not measured.
            learning_rate: What is logged. Default: the schedule's last.
            start_time: When the run began, in seconds of ``time.time``.
        """
        host = self._host
        if host.control.should_log and host.state.global_step > self._counts.last_logged_step:
            logs = self._logs(tr_loss, grad_norm, learning_rate)
            call_as_defined(host.log, ("logs", logs), ("start_time", start_time))

    def _logs(self, tr_loss: Tensor, grad_norm: Norm, learning_rate: float | None) -> dict[str, float]:
        """Return what is logged of the update steps since the last log, and start counting anew."""
        host, counts = self._host, self._counts
        summed = host.accelerator.gather(tr_loss).mean().item()
        tr_loss -= tr_loss  # in place, as callers hold it; a NaN stays, as upstream's does
        mean = summed / (host.state.global_step - counts.last_logged_step)
        logs = {"loss": mean if host.semantics.logs_unrounded_loss else round(mean, 4)}
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = host._get_learning_rate() if learning_rate is None else learning_rate
        counts.total_loss_scalar += summed
        counts.last_logged_step = host.state.global_step
        host.store_flos()
        return logs
