"""Logs by update step, with transformers' names: mean loss, learning rate and gradient norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from hf_compat.errors import TrainerSetupError

__all__ = ["GradientNorm", "UpdateStepLogs"]


class GradientNorm(Callback):
    """Computes the gradient norm of every n-th update step, before clipping, and logs it as ``train/grad_norm``.

    For any LightningModule whose optimizer has all of its gradients on each rank.

    Args:
        every_n_steps: Update steps between two.

    Attributes:
        norm: The last norm, ``()``; None before the first.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        self.every_n_steps = _checked(every_n_steps)
        self.norm: Tensor | None = None

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Compute and log it."""
        step = pl_trainer.global_step + 1
        if step % self.every_n_steps:
            return
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self.norm = torch.nn.utils.get_total_norm(gradients)
        for logger in pl_trainer.loggers:
            logger.log_metrics({"train/grad_norm": self.norm.item()}, step=step)


class UpdateStepLogs(Callback):
    """Logs every n update steps the mean loss since the last log, learning rate and epoch, as transformers does.

    ``train/loss``, ``train/learning_rate`` and ``train/epoch`` go to the trainer's loggers, with the update step as x
    axis; between two logs nothing synchronises with the device. For any LightningModule whose ``training_step`` returns
    the loss. The mean is of this rank's losses.

    Args:
        every_n_steps: Update steps between two logs.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        self.every_n_steps = _checked(every_n_steps)
        self._summed: Tensor | float = 0.0
        self._count = 0
        self._last_step = 0
        self._learning_rate = 0.0

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the learning rate of the update step."""
        self._learning_rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss of a batch, and log if it is time.

        Raises:
            TrainerSetupError: If ``training_step`` returns no loss.
        """
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            raise TrainerSetupError(
                "UpdateStepLogs: `training_step` returns no loss. Return it, or a dict with `loss`."
            )
        # Lightning has divided it by the batches of an update step.
        batches = pl_trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._summed, self._count = self._summed + batches * loss.detach(), self._count + 1
        step = pl_trainer.global_step
        if step == self._last_step or step % self.every_n_steps:
            return
        self._last_step = step
        epoch = pl_trainer.current_epoch + (batch_idx + 1) / pl_trainer.num_training_batches
        logs = {"loss": float(self._summed) / self._count, "learning_rate": self._learning_rate, "epoch": epoch}
        self._summed, self._count = 0.0, 0
        for logger in pl_trainer.loggers:
            logger.log_metrics({f"train/{name}": value for name, value in logs.items()}, step=step)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses since the last log."""
        return {"summed": float(self._summed), "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with them."""
        self._summed, self._count = state_dict["summed"], state_dict["count"]


def _checked(every_n_steps: int) -> int:
    if every_n_steps < 1:
        raise TrainerSetupError(f"`every_n_steps={every_n_steps}`: pass 1 or more.")
    return every_n_steps
