"""Losses that the Trainer computes in place of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

__all__ = ["LabelSmoother"]


@dataclass
class LabelSmoother:
    """Cross-entropy against labels mixed with the uniform distribution over all classes.

    Attributes:
        epsilon: Share of the uniform distribution, 0 to 1.
        ignore_index: Label of positions that are not scored.
    """

    epsilon: float = 0.1
    ignore_index: int = -100

    def __call__(
        self, model_output: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return the smoothed loss, ``()``, in nats per scored position.

        Args:
            model_output: A dict with ``logits``, or a sequence that starts with them: ``(..., classes)``.
            labels: ``(...)`` or ``(..., 1)``, int64.
            shift_labels: Score position ``t`` of the last but one axis against label ``t + 1``.
            num_items_in_batch: What to divide by, a number or a tensor on any device. Default: scored positions here.

        References:
            Same numbers as ``LabelSmoother`` of transformers ``trainer_pt_utils.py``.
        """
        logits = model_output["logits"] if isinstance(model_output, dict) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        surprise = -log_softmax(logits, dim=-1)
        if labels.dim() < surprise.dim():
            labels = labels.unsqueeze(-1)
        ignored = labels.eq(self.ignore_index)

        # A negative index cannot be gathered; what stands in for it is masked below.
        of_label = surprise.gather(dim=-1, index=labels.clamp(min=0)).masked_fill_(ignored, 0.0)
        # Over a large vocabulary a half-precision sum would overflow.
        of_all = surprise.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill_(ignored, 0.0)

        count = self._count(ignored, num_items_in_batch)
        label_loss = of_label.sum() / count
        uniform_loss = of_all.sum() / (count * surprise.shape[-1])
        loss: Tensor = (1 - self.epsilon) * label_loss + self.epsilon * uniform_loss
        return loss

    @staticmethod
    def _count(ignored: Tensor, given: Any) -> Any:
        if given is None:
            return ignored.numel() - ignored.long().sum()
        return given.to(ignored.device) if isinstance(given, Tensor) else given
