"""Optimizers that update weights in the backward pass: LOMO and AdaLomo, and what all such leave undone."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
from hf_compat.optim.layerwise import LayerwiseOptimizer
from hf_compat.optim.settings import Built, OptimizerRequest, plain_name

__all__ = ["UPDATED_IN_BACKWARD", "leave_step_to_backward", "lomo", "notices"]

UPDATED_IN_BACKWARD = frozenset({"lomo", "adalomo"})
"""Names of the optimizers whose backward pass is given the learning rate."""


def lomo(request: OptimizerRequest, *, attribute: str) -> Built:
    """Return LOMO or AdaLomo, built from the model in place of parameters."""
    if request.model is None:
        raise ArgumentsError([f"`optim={request.name!r}` is built from the model: pass `model` too."])
    optimizer = request.load("lomo_optim", attribute, extra="lomo")
    if attribute == "AdaLomo" and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: lomo-optim computes it on a CUDA GPU only; use optim='lomo'."]
        )
    return optimizer, {"model": request.model}


def _run_closure(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
    return None if closure is None else closure()


def leave_step_to_backward(optimizer: Any) -> None:
    """Make ``optimizer.step`` do nothing but run the closure: LOMO's own is not there, its work is done by then."""
    # A bound method, because torch's schedules count calls of one.
    optimizer.step = MethodType(_run_closure, optimizer)


def notices(args: Any, optimizer: Any, semantics: Semantics) -> list[str]:
    """Return what a user should know of ``args`` that ``optimizer`` carries out otherwise, or not at all."""
    layerwise = isinstance(optimizer, LayerwiseOptimizer)
    if not layerwise and not hasattr(optimizer, "fused_backward"):
        return []
    name, windows, found = f"`optim={plain_name(args.optim)!r}`", args.gradient_accumulation_steps, []
    if args.max_grad_norm:
        found.append(
            f"{name} updates weights in the backward pass, so gradients are not clipped and their norm is logged as 0: "
            f"set `max_grad_norm=0` instead of {args.max_grad_norm}."
        )
    if windows > 1:
        found.append(
            f"{name} updates weights in the backward pass, so `gradient_accumulation_steps={windows}` accumulates "
            "nothing: each batch makes an update."
        )
    if layerwise and semantics.leaves_layerwise_rate_constant:
        found.append(
            f"{name}: transformers {semantics.release} logs the scheduled learning rate but updates with the first, "
            "and so does this run. Set `TrainingArguments(semantics='corrected')` to follow the schedule."
        )
    return found
