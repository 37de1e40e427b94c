"""An optimizer for each parameter, stepped in the backward pass as soon as the parameter's gradient is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LayerwiseOptimizer"]


class LayerwiseOptimizer(Optimizer):
    """Steps the optimizer of each parameter once its gradient is there, and frees the gradient.

    Its own ``step`` does nothing but run the closure, and its one group holds the learning rate that a schedule moves.
    The state of the optimizers inside is not in ``state_dict``, as it is not in transformers'.

    Args:
        optimizer_dict: The optimizer of each parameter.
        lr: The learning rate the run starts with.
        follows_schedule: Take the scheduled learning rate for every update; otherwise ``lr`` is used throughout.

    References:
        Same state and random draws as ``LayerWiseDummyOptimizer`` of transformers ``trainer_pt_utils.py``.
    """

    def __init__(self, optimizer_dict: dict[Tensor, Optimizer], lr: float, *, follows_schedule: bool) -> None:
        self.optimizer_dict = optimizer_dict
        self._follows_schedule = follows_schedule
        # Drawn rather than zeros: transformers moves the global generator on here.
        super().__init__([torch.randn(1, 1)], {"lr": lr})
        for parameter in optimizer_dict:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._update)  # type: ignore[no-untyped-call]

    def _update(self, parameter: Tensor) -> None:
        optimizer = self.optimizer_dict[parameter]
        if self._follows_schedule:
            for group in optimizer.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Return what ``closure`` returns; all weights are updated by now."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are gone once they are used."""
