"""``GradientClipping``: by norm or by value, and the gradient norm that is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.utils import clip_grad_value_

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["GradientClipping", "Norm"]

Norm = Tensor | float | None
"""A gradient norm before clipping, ``()``; None if it was not computed."""


class GradientClipping:
    """Clips the gradients to ``max_grad_norm`` with the Trainer's methods.

    Args:
        trainer: The Trainer.
        clip_value: Clip each element to between minus this and this instead; None for the norm.

    Attributes:
        norm: The gradient norm of the last update step before clipping, which is logged; None if it was not computed.
    """

    def __init__(self, trainer: Trainer, clip_value: float | None) -> None:
        self._trainer = trainer
        self._clip_value = clip_value
        self.norm: Norm = None

    def clip(self) -> None:
        """Clip the gradients, and keep their norm."""
        model, most = self._trainer.model_wrapped, self._trainer.args.max_grad_norm
        if self._clip_value is not None:
            self.norm = self._trainer._get_grad_norm(model)
            clip_grad_value_(model.parameters(), self._clip_value)
            return
        self.norm = self._trainer._clip_grad_norm(model) if most is not None and most > 0 else None
        if self._trainer.semantics.always_logs_grad_norm:
            self.norm = self._trainer._get_grad_norm(model, grad_norm=self.norm)
