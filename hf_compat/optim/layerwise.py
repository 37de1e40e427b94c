"""One optimizer per parameter, stepped in the backward pass as soon as the gradient is accumulated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LayerwiseOptimizer"]


class LayerwiseOptimizer(Optimizer):
    """Steps the optimizer of each parameter once its gradient is accumulated, and frees the gradient.

    Its own ``step`` only runs the closure, and its one parameter group holds the learning rate of the schedule. The
    state of the optimizers inside is not in ``state_dict``, as in transformers.

    Args:
        optimizer_dict: The optimizer of each parameter.
        lr: The initial learning rate.
        follows_schedule: Use the scheduled learning rate, rather than ``lr`` for every update.

    References:
        Same state and random draws as ``LayerWiseDummyOptimizer`` of transformers ``trainer_pt_utils.py``.
    """

    def __init__(self, optimizer_dict: dict[Tensor, Optimizer], lr: float, *, follows_schedule: bool) -> None:
        self.optimizer_dict = optimizer_dict
        self._follows_schedule = follows_schedule
        # Random rather than zeros, because transformers draws from the global generator here.
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

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Return what ``closure`` returns; the parameters are updated already."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: each gradient is freed after its update."""
