"""Losses that the Trainer computes instead of the model, and checks of those that users' code returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from hf_compat.errors import LossError, described


@dataclass
class LabelSmoother:
    """Cross-entropy with label smoothing.

    Attributes:
        epsilon: Smoothing factor, 0 to 1: the weight of the uniform distribution.
        ignore_index: Label of positions that are not in the loss.
    """

    epsilon: float = 0.1
    ignore_index: int = -100

    def __call__(
        self,
        model_output: dict[str, Any] | Sequence[Any],
        labels: Tensor,
        shift_labels: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the smoothed loss, ``()``, averaged over the positions that are not ignored.

        Args:
            model_output: A dict with ``logits``, or a sequence that starts with them: ``(..., classes)``.
            labels: ``(...)`` or ``(..., 1)``, int64.
            shift_labels: Compare the logits of position ``t`` with label ``t + 1``.
            num_items_in_batch: What to divide by, a tensor may be on any device. Default: positions not ignored.

        References:
            Same numbers as ``LabelSmoother`` of transformers ``trainer_pt_utils.py``.
        """
        logits: Tensor = model_output["logits"] if isinstance(model_output, dict) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        neg_log_probs = -log_softmax(logits, dim=-1)
        if labels.dim() < neg_log_probs.dim():
            labels = labels.unsqueeze(-1)
        ignored = labels.eq(self.ignore_index)

        # gather() takes no negative index; the values gathered for ignored positions are masked.
        nll = neg_log_probs.gather(dim=-1, index=labels.clamp(min=0)).masked_fill_(ignored, 0.0)
        # Over a large vocabulary a half-precision sum would overflow.
        smoothed = neg_log_probs.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill_(ignored, 0.0)

        count = self._count(ignored, num_items_in_batch)
        nll_loss = nll.sum() / count
        smoothed_loss = smoothed.sum() / (count * neg_log_probs.shape[-1])
        loss: Tensor = (1 - self.epsilon) * nll_loss + self.epsilon * smoothed_loss
        return loss

    @staticmethod
    def _count(ignored: Tensor, num_items: Tensor | int | None) -> Tensor | int:
        if num_items is None:
            return ignored.numel() - ignored.long().sum()
        return num_items.to(ignored.device) if isinstance(num_items, Tensor) else num_items


def check_loss(loss: object, source: str) -> None:
    """Raise if what ``source`` returned is no loss.

    Raises:
        LossError: If it is no tensor.
    """
    if not isinstance(loss, Tensor):
        raise LossError(f"{source} returned {described(loss)} instead of the loss. Return a tensor with one element.")


def loss_and_outputs(returned: Any, source: str) -> tuple[Tensor, Any]:
    """Return the two parts of what ``source`` returned for ``return_outputs=True``.

    Raises:
        LossError: If it is no pair of a loss and outputs.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise LossError(
            f"{source} returned {described(returned)} for `return_outputs=True`. Return the loss and the model's "
            "outputs: `return (loss, outputs) if return_outputs else loss`."
        )
    loss, outputs = returned
    check_loss(loss, source)
    return loss, outputs


def loss_logits_and_labels(returned: Any, source: str) -> tuple[Tensor | None, Any, Any]:
    """Return the three parts of what ``source``, a ``prediction_step``, returned.

    Raises:
        LossError: If there are not three, or the loss is neither a tensor nor None.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        number = f" of length {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise LossError(
            f"{source} returned {described(returned)}{number}. Return the loss, the logits and the labels of the "
            "batch, None for each that there is not."
        )
    loss, logits, labels = returned
    if loss is not None:
        check_loss(loss, source)
    return loss, logits, labels
