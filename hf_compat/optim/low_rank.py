"""GaLore and APOLLO: optimizers that keep the state of target linear layers in a low-rank projection."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from hf_compat.errors import ArgumentsError, ArgumentTypesError, UnsupportedArgumentsError
from hf_compat.optim.in_backward import LayerwiseOptimizer
from hf_compat.optim.optimizer_request import ClassAndKwargs, OptimizerRequest

__all__ = ["apollo", "galore", "target_weights"]

logger = logging.getLogger(__name__)

_GALORE: dict[str, tuple[Callable[[str], Any], str]] = {
    "rank": (int, "128"),
    "update_proj_gap": (int, "200"),
    "scale": (float, "0.25"),
    "proj_type": (str, "std"),
}
_APOLLO: dict[str, tuple[Callable[[str], Any], str]] = {
    "rank": (int, "128"),
    "proj": (str, "random"),
    "scale_type": (str, "channel"),
    "update_proj_gap": (int, "200"),
    "scale": (float, "1.0"),
    "proj_type": (str, "std"),
}
_FIXED_RATE = {"scale_parameter": False, "relative_step": False}


def galore(request: OptimizerRequest, *, attribute: str, layerwise: bool = False) -> ClassAndKwargs:
    """Return a GaLore optimizer that projects the layers in ``optim_target_modules``.

    A layerwise GaLoreAdafactor is supported; in transformers it fails.
    """
    optimizer = request.load("galore_torch", attribute, extra="galore")  # upstream's first error is that it is missing
    _check(request, layerwise=layerwise)
    if attribute.endswith("8bit") and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: galore-torch supports it on CUDA GPUs only; use optim='galore_adamw'."]
        )
    fixed = _FIXED_RATE if attribute == "GaLoreAdafactor" else {}
    return _build(request, optimizer, _options(request, _GALORE), fixed, layerwise=layerwise)


def apollo(request: OptimizerRequest, *, layerwise: bool = False) -> ClassAndKwargs:
    """Return an APOLLO optimizer that projects the layers in ``optim_target_modules``."""
    optimizer = request.load("apollo_torch", "APOLLOAdamW", extra="apollo")
    _check(request, layerwise=layerwise)
    return _build(request, optimizer, _options(request, _APOLLO) | request.adam, {}, layerwise=layerwise)


def target_weights(model: nn.Module, targets: str | Collection[str]) -> set[str]:
    """Return the names of the weights of the linear layers of ``model`` that match ``targets``.

    Args:
        model: The model.
        targets: ``"all-linear"``; a regular expression that matches a module's full name; or a list of names, parts
            of names or regular expressions.
    """
    every = isinstance(targets, str) and targets.replace("_", "-") == "all-linear"
    found = set()
    for name, module in model.named_modules():
        matches = _matches(name, targets)
        if isinstance(module, nn.Linear):
            if matches or every:
                found.add(f"{name}.weight")
        elif matches and _is_named(name, targets):
            logger.warning(
                "`optim_target_modules`: `%s` matched but ignored: it is not a linear layer, so it has no projection.",
                name,
            )
    return found


def _matches(name: str, targets: str | Collection[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(target in name or re.fullmatch(target, name) for target in targets)


def _is_named(name: str, targets: str | Collection[str]) -> bool:
    """Return whether ``targets`` names ``name`` literally, not by a regular expression."""
    return name == targets if isinstance(targets, str) else any(target in name for target in targets)


def _options(request: OptimizerRequest, table: dict[str, tuple[Callable[[str], Any], str]]) -> dict[str, Any]:
    return {name: convert(request.options.get(name, default)) for name, (convert, default) in table.items()}


def _check(request: OptimizerRequest, *, layerwise: bool) -> None:
    """Raise one error with all problems of the optimizer's fields."""
    name, settings, problems = request.name, request.settings, []
    targets = settings.optim_target_modules
    is_wrong = not isinstance(targets, str | list | None)
    if targets is None:
        problems.append(
            f"`optim={name!r}` needs `optim_target_modules`: You need to define `optim_target_modules`, such as "
            "'all-linear'."
        )
    elif is_wrong:
        problems.append(f"`optim_target_modules={targets!r}`: must be a list of strings, a regex or 'all-linear'.")
    if request.model is None:
        problems.append(f"`optim={name!r}`: You need to pass a model, from which it is built.")
    if layerwise and settings.gradient_accumulation_steps != 1:
        problems.append(
            f"`gradient_accumulation_steps={settings.gradient_accumulation_steps}` with `optim={name!r}`, which "
            "updates parameters in the backward pass and does not support gradient accumulation: set "
            "`gradient_accumulation_steps=1`."
        )
    if layerwise and settings.world_size > 1:
        plain = name.removesuffix("_layerwise")
        problems.append(
            f"`optim={name!r}` does not support a world size of {settings.world_size}; use optim={plain!r}."
        )
    if problems:
        raise (ArgumentTypesError if is_wrong else ArgumentsError)(problems)


def _build(
    request: OptimizerRequest,
    optimizer: Callable[..., Any],
    projection: dict[str, Any],
    fixed: dict[str, Any],
    *,
    layerwise: bool,
) -> ClassAndKwargs:
    """Return the optimizer with two parameter groups: the target weights with their ``projection`` come second."""
    targets = request.settings.optim_target_modules
    assert request.model is not None, "_check raised otherwise"
    assert targets is not None, "_check raised otherwise"
    names = target_weights(request.model, targets)
    if not names:
        raise ArgumentsError(
            [
                f"`optim_target_modules={targets!r}`: No target modules found, {type(request.model).__name__} has no "
                "linear layer that matches."
            ]
        )
    parameters = list(request.model.named_parameters())
    others = [parameter for name, parameter in parameters if name not in names]
    target = [parameter for name, parameter in parameters if name in names]
    if not layerwise:
        return optimizer, {"params": [{"params": others}, {"params": target, **projection}], **fixed}
    rate = {"lr": request.settings.learning_rate, **fixed}
    each = {parameter: optimizer([{"params": [parameter]}], **rate) for parameter in others}
    each |= {parameter: optimizer([{"params": [parameter], **projection}], **rate) for parameter in target}
    follows = not request.semantics.leaves_layerwise_rate_constant
    saves_all = request.semantics.corrected
    return LayerwiseOptimizer, {"optimizer_dict": each, "follows_schedule": follows, "saves_all": saves_all}
