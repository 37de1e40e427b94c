"""Optimizers that update parameters in the backward pass: LOMO, AdaLomo, and what none of them supports."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
from hf_compat.optim.optimizer_request import ClassAndKwargs, OptimizerRequest, plain_name

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "UPDATED_IN_BACKWARD",
    "LayerwiseOptimizer",
    "leave_step_to_backward",
    "lomo",
    "notices",
    "updates_in_backward",
]

_LossT = TypeVar("_LossT")

UPDATED_IN_BACKWARD = frozenset({"lomo", "adalomo"})
"""Optimizers whose backward pass takes the learning rate."""


def lomo(request: OptimizerRequest, *, attribute: str) -> ClassAndKwargs:
    """Return LOMO or AdaLomo, built from the model instead of parameters."""
    optimizer = request.load("lomo_optim", attribute, extra="lomo")
    if request.model is None:
        raise ArgumentsError([f"`optim={request.name!r}`: You need to pass a `model`, from which it is built."])
    if attribute == "AdaLomo" and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: lomo-optim supports it on CUDA GPUs only; use optim='lomo'."]
        )
    return optimizer, {"model": request.model}


def _run_closure(_: Optimizer, closure: Callable[[], _LossT] | None = None) -> _LossT | None:
    return None if closure is None else closure()


def leave_step_to_backward(optimizer: Optimizer) -> None:
    """Make ``optimizer.step`` run the closure only: the backward pass updates the parameters."""
    # A bound method, because torch's schedules count the calls of one.
    optimizer.step = MethodType(_run_closure, optimizer)  # type: ignore[method-assign]


def updates_in_backward(optimizer: object) -> bool:
    """Return whether ``optimizer`` updates parameters in the backward pass."""
    return isinstance(optimizer, LayerwiseOptimizer) or hasattr(optimizer, "fused_backward")


def notices(args: TrainingArguments, optimizer: object, semantics: Semantics) -> list[str]:
    """Return a warning for each field of ``args`` that has no or another effect with ``optimizer``."""
    if not updates_in_backward(optimizer):
        return []
    layerwise = isinstance(optimizer, LayerwiseOptimizer)
    name, accumulate, found = f"`optim={plain_name(args.optim)!r}`", args.gradient_accumulation_steps, []
    if norm := args.max_grad_norm:
        found.append(
            f"{name} updates parameters in the backward pass, so `max_grad_norm={norm}` does not clip "
            "gradients and their norm is logged as 0: set `max_grad_norm=0`."
        )
    if accumulate > 1:
        found.append(
            f"{name} updates parameters in the backward pass, so `gradient_accumulation_steps={accumulate}` does not "
            "accumulate: each batch is an update. Set `gradient_accumulation_steps=1`."
        )
    if layerwise and semantics.leaves_layerwise_rate_constant:
        found.append(
            f"{name}: as in transformers {semantics.release}, the scheduled learning rate is logged but the initial "
            "one is used. Set `TrainingArguments(semantics='corrected')` to follow the schedule."
        )
    return found


class LayerwiseOptimizer(Optimizer):
    """Steps the optimizer of each parameter once its gradient is accumulated, and frees the gradient.

    Its own ``step`` only runs the closure, and its one parameter group holds the learning rate of the schedule.

    Args:
        optimizer_dict: The optimizer of each parameter.
        lr: The initial learning rate.
        follows_schedule: Use the scheduled learning rate, rather than ``lr`` for every update.
        saves_all: Have the states of the optimizers inside in ``state_dict``, in which transformers has none of them.

    References:
        Same state and random draws as ``LayerWiseDummyOptimizer`` of transformers ``trainer_pt_utils.py``.
    """

    def __init__(
        self, optimizer_dict: dict[Tensor, Optimizer], lr: float, *, follows_schedule: bool, saves_all: bool = False
    ) -> None:
        self.optimizer_dict = optimizer_dict
        self.saves_all = saves_all
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

    def state_dict(self) -> dict[str, Any]:
        """Return the learning rate, and with ``saves_all`` the state dict of each optimizer inside."""
        inside = [optimizer.state_dict() for optimizer in self.optimizer_dict.values()] if self.saves_all else None
        return super().state_dict() | ({} if inside is None else {"optimizers": inside})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the learning rate, and the state of each optimizer inside that ``state_dict`` has."""
        super().load_state_dict(state_dict)
        if self.saves_all and "optimizers" in state_dict:
            for optimizer, state in zip(self.optimizer_dict.values(), state_dict["optimizers"], strict=True):
                optimizer.load_state_dict(state)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Return what ``closure`` returns; the parameters are updated already."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: each gradient is freed after its update."""
