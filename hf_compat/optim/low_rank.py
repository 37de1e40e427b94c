"""GaLore and APOLLO: optimizers that keep the state of chosen linear layers in few dimensions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
from hf_compat.optim.layerwise import LayerwiseOptimizer
from hf_compat.optim.settings import Built, OptimizerRequest

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


def galore(request: OptimizerRequest, *, attribute: str, layerwise: bool = False) -> Built:
    """Return a GaLore optimizer of the weights that ``optim_target_modules`` names.

    A layerwise GaLoreAdafactor is built as the other one is; transformers' cannot be built at all.
    """
    _check(request, layerwise=layerwise)
    optimizer = request.load("galore_torch", attribute, extra="galore")
    if attribute.endswith("8bit") and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: galore-torch computes it on a CUDA GPU only; use optim='galore_adamw'."]
        )
    own = _FIXED_RATE if attribute == "GaLoreAdafactor" else {}
    return _build(request, optimizer, _read(request, _GALORE), own, layerwise=layerwise)


def apollo(request: OptimizerRequest, *, layerwise: bool = False) -> Built:
    """Return an APOLLO optimizer of the weights that ``optim_target_modules`` names."""
    _check(request, layerwise=layerwise)
    optimizer = request.load("apollo_torch", "APOLLOAdamW", extra="apollo")
    return _build(request, optimizer, _read(request, _APOLLO) | request.adam, {}, layerwise=layerwise)


def target_weights(model: nn.Module, targets: str | Collection[str]) -> set[str]:
    """Return the names of the weights of those linear layers of ``model`` that ``targets`` names.

    Args:
        model: The model.
        targets: ``"all-linear"``; a regular expression that matches a module's whole name; or several names, parts of
            names or regular expressions.
    """
    every = isinstance(targets, str) and targets.replace("_", "-") == "all-linear"
    found = set()
    for name, module in model.named_modules():
        matches = _matches(name, targets)
        if isinstance(module, nn.Linear):
            if matches or every:
                found.add(f"{name}.weight")
        elif matches and _is_named(name, targets):
            logger.warning("`optim_target_modules`: `%s` is no linear layer and is optimized as usual.", name)
    return found


def _matches(name: str, targets: str | Collection[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(target in name or re.fullmatch(target, name) for target in targets)


def _is_named(name: str, targets: str | Collection[str]) -> bool:
    """Return whether ``name`` is meant rather than swept up by a regular expression."""
    return name == targets if isinstance(targets, str) else any(target in name for target in targets)


def _read(request: OptimizerRequest, table: dict[str, tuple[Callable[[str], Any], str]]) -> dict[str, Any]:
    return {name: convert(request.options.get(name, default)) for name, (convert, default) in table.items()}


def _check(request: OptimizerRequest, *, layerwise: bool) -> None:
    """Raise what stands against the optimizer, all at once."""
    name, settings, problems = request.name, request.settings, []
    targets = settings.optim_target_modules
    if targets is None:
        problems.append(f"`optim={name!r}`: set `optim_target_modules`, for instance to 'all-linear'.")
    elif not isinstance(targets, str | list | tuple):
        problems.append(f"`optim_target_modules={targets!r}`: use a list of names, a regex or 'all-linear'.")
    if request.model is None:
        problems.append(f"`optim={name!r}` is built from the model: pass `model` too.")
    if layerwise and settings.gradient_accumulation_steps != 1:
        problems.append(
            f"`optim={name!r}` updates each weight in the backward pass; set `gradient_accumulation_steps=1` instead "
            f"of {settings.gradient_accumulation_steps}."
        )
    if layerwise and settings.world_size > 1:
        plain = name.removesuffix("_layerwise")
        problems.append(f"`optim={name!r}` runs on one process, not on {settings.world_size}; use optim={plain!r}.")
    if problems:
        raise ArgumentsError(problems)


def _build(
    request: OptimizerRequest, optimizer: Any, projection: dict[str, Any], own: dict[str, Any], *, layerwise: bool
) -> Built:
    """Return the optimizer with two groups: other parameters, then the target weights with their ``projection``."""
    targets = request.settings.optim_target_modules
    assert request.model is not None, "checked before"
    assert targets is not None, "checked before"
    names = target_weights(request.model, targets)
    if not names:
        raise ArgumentsError(
            [f"`optim_target_modules={targets!r}`: {type(request.model).__name__} has no linear layer of that name."]
        )
    parameters = list(request.model.named_parameters())
    others = [parameter for name, parameter in parameters if name not in names]
    chosen = [parameter for name, parameter in parameters if name in names]
    if not layerwise:
        return optimizer, {"params": [{"params": others}, {"params": chosen, **projection}], **own}
    rate = {"lr": request.settings.learning_rate, **own}
    each = {parameter: optimizer([{"params": [parameter]}], **rate) for parameter in others}
    each |= {parameter: optimizer([{"params": [parameter], **projection}], **rate) for parameter in chosen}
    follows = not request.semantics.leaves_layerwise_rate_constant
    return LayerwiseOptimizer, {"optimizer_dict": each, "follows_schedule": follows}
