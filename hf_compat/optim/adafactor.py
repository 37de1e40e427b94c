"""Adafactor: an adaptive optimizer with factored second moments (https://arxiv.org/abs/1804.04235)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from hf_compat.errors import ArgumentsError

_HALF = frozenset({torch.float16, torch.bfloat16})


def _root_mean_square(tensor: Tensor) -> Tensor:
    norm: Tensor = tensor.norm(2)
    root: float = tensor.numel() ** 0.5
    return norm / root


def _running_averages(grad: Tensor, *, first_moment: bool) -> dict[str, Tensor]:
    """Return zeros for each running average of ``grad``; the second moments of a matrix are factored."""
    shape = grad.shape
    averages: dict[str, Tensor] = {}
    if first_moment:
        averages["exp_avg"] = torch.zeros_like(grad)
    if len(shape) >= 2:
        averages["exp_avg_sq_row"] = grad.new_zeros(shape[:-1])
        averages["exp_avg_sq_col"] = grad.new_zeros(shape[:-2] + shape[-1:])
    else:
        averages["exp_avg_sq"] = torch.zeros_like(grad)
    return averages


class Adafactor(Optimizer):
    """Adafactor with the same updates and state dict as transformers', so that either resumes from the other's state.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate; None with ``relative_step``.
        eps: Added to squared gradients, and the lower bound of a parameter's scale.
        clip_threshold: Root mean square that updates are clipped to.
        decay_rate: Negative exponent: the decay of the averages approaches 1 with the update step.
        beta1: Decay of the first moment. Default: no first moment.
        weight_decay: Decoupled weight decay, times the learning rate.
        scale_parameter: Multiply the learning rate by the parameter's root mean square.
        relative_step: Compute the learning rate from the update step.
        warmup_init: Warm that learning rate up.

    Raises:
        ArgumentsError: If these arguments contradict each other.

    References:
        ``Adafactor`` of transformers ``optimization.py``, to the last bit.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if relative_step and lr is not None:
            raise ArgumentsError([f"`lr={lr}` with `relative_step=True`, which sets `lr`: remove one of them."])
        if warmup_init and not relative_step:
            raise ArgumentsError(
                ["`warmup_init=True` with `relative_step=False`: set `relative_step=True`, or remove `warmup_init`."]
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "eps": eps,
                "clip_threshold": clip_threshold,
                "decay_rate": decay_rate,
                "beta1": beta1,
                "weight_decay": weight_decay,
                "scale_parameter": scale_parameter,
                "relative_step": relative_step,
                "warmup_init": warmup_init,
            },
        )

    @staticmethod
    def _get_lr(param_group: dict[str, Any], param_state: dict[str, Any]) -> float | Tensor:
        """Return the learning rate of one parameter; called by transformers' ``AdafactorSchedule``."""
        rate: float = param_group["lr"]
        if param_group["relative_step"]:
            ceiling = 1e-6 * param_state["step"] if param_group["warmup_init"] else 1e-2
            rate = min(ceiling, 1.0 / math.sqrt(param_state["step"]))
        scale: float | Tensor = (
            max(param_group["eps"][1], param_state["RMS"]) if param_group["scale_parameter"] else 1.0
        )
        return scale * rate

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters; return the loss of ``closure`` if there is one.

        Raises:
            RuntimeError: If a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        grad: Tensor = parameter.grad  # type: ignore[assignment]
        if grad.is_sparse:
            raise RuntimeError("Adafactor does not support sparse gradients: set `sparse=False` in the embedding.")
        if grad.dtype in _HALF:
            grad = grad.float()
        weight = parameter.float() if parameter.dtype in _HALF else parameter

        state = self._prepare_state(parameter, grad, first_moment=group["beta1"] is not None)
        state["step"] += 1
        state["RMS"] = _root_mean_square(weight)
        rate = self._get_lr(group, state)

        update = self._preconditioned(grad, state, group)
        update.div_((_root_mean_square(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if group["weight_decay"] != 0:
            weight.add_(weight, alpha=-group["weight_decay"] * rate)
        weight.sub_(update)
        if weight is not parameter:
            parameter.copy_(weight)

    def _prepare_state(self, parameter: Tensor, grad: Tensor, *, first_moment: bool) -> dict[str, Any]:
        """Return the parameter's state, its averages with the dtype and device of ``grad``."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            state.update(_running_averages(grad, first_moment=first_moment))
            state["RMS"] = 0
            return state
        # Loading a checkpoint casts all state to the parameter's dtype.
        for name in ("exp_avg", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"):
            if name in state:
                state[name] = state[name].to(grad)
        return state

    @staticmethod
    def _preconditioned(grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """Update the running mean square of ``grad``; return ``grad`` divided by its root."""
        decay = 1.0 - math.pow(state["step"], group["decay_rate"])
        squares = grad**2 + group["eps"][0]
        if "exp_avg_sq" in state:
            mean_squares: Tensor = state["exp_avg_sq"].mul_(decay).add_(squares, alpha=1.0 - decay)
            return mean_squares.rsqrt().mul_(grad)
        rows: Tensor = state["exp_avg_sq_row"].mul_(decay).add_(squares.mean(dim=-1), alpha=1.0 - decay)
        columns: Tensor = state["exp_avg_sq_col"].mul_(decay).add_(squares.mean(dim=-2), alpha=1.0 - decay)
        row_factor = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return torch.mul(row_factor, columns.unsqueeze(-2).rsqrt()).mul_(grad)
