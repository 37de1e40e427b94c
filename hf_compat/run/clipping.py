"""Gradient clipping, by norm or by value, and the gradient norm that is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.utils import clip_grad_value_

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["Norm", "clip_gradients"]

Norm = Tensor | float | None
"""A gradient norm before clipping, ``()``; None if it was not computed."""


def clip_gradients(trainer: Trainer, clip_value: float | None = None) -> Norm:
    """Clip the gradients to ``max_grad_norm`` with the Trainer's methods; return the norm to log.

    Args:
        trainer: The Trainer.
        clip_value: Clip each element to between minus this and this instead; the norm is that before clipping.
    """
    model, most = trainer.model_wrapped, trainer.args.max_grad_norm
    if clip_value is not None:
        norm: Norm = trainer._get_grad_norm(model)
        clip_grad_value_(model.parameters(), clip_value)
        return norm
    norm = trainer._clip_grad_norm(model) if most is not None and most > 0 else None
    return trainer._get_grad_norm(model, grad_norm=norm) if trainer.semantics.always_logs_grad_norm else norm
