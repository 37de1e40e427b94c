"""Gradient clipping before the optimizer step, by norm or by value, and the gradient norm that is logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.utils import clip_grad_value_
from torch.optim import Optimizer

from hf_compat.engine.callbacks import RunCallback

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.host import RunHost

__all__ = ["GradientClipping", "clip_gradients"]

Norm = Tensor | float | None


class GradientClipping(RunCallback):
    """Clips the gradients, after a gradient scaler has unscaled them, and stores their norm.

    Hooks: ``on_before_optimizer_step``. Works in any Lightning trainer.

    Args:
        clip: Clips the gradients and returns their norm before clipping, ``()``; None if it was not computed.

    Attributes:
        norm: The last result of ``clip``.
    """

    def __init__(self, clip: Callable[[], Norm]) -> None:
        self._clip = clip
        self.norm: Norm = None

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Clip."""
        self.norm = self._clip()


def clip_gradients(host: RunHost, clip_value: float | None = None) -> Norm:
    """Clip the gradients to ``max_grad_norm`` with the Trainer's methods; return the norm to log.

    Args:
        host: The Trainer.
        clip_value: Clip each element to between minus this and this instead; the norm is that before clipping.
    """
    model, most = host.model_wrapped, host.args.max_grad_norm
    if clip_value is not None:
        norm: Norm = host._get_grad_norm(model)
        clip_grad_value_(model.parameters(), clip_value)
        return norm
    norm = host._clip_grad_norm(model) if most is not None and most > 0 else None
    return host._get_grad_norm(model, grad_norm=norm) if host.semantics.always_logs_grad_norm else norm
