"""Recovers the parameter names of an optimizer state that Lightning and transformers store by position only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hf_compat.errors import CheckpointError

__all__ = ["Candidates", "NamedOptimizer", "name_parameters", "trained_of"]

_Layout = list[list[str]]
_OLD_NO_DECAY = ("bias", "LayerNorm.weight")
"""Parts of names without weight decay, in scripts made after transformers' first examples."""


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer's state dict by parameter name."""

    groups: list[dict[str, Any]]
    """Options of each group, with the names of its parameters as ``params``."""
    state: dict[str, dict[str, Any]]
    """Name → state."""
    by_order: str | None
    """The order by which the parameters were matched; None if the checkpoint has their names."""


@dataclass(frozen=True)
class Candidates:
    """Parameters that an optimizer may have."""

    shapes: Mapping[str, tuple[int, ...]]
    """Name → shape of all parameters of the module, in its order."""
    models: Sequence[Sequence[str]]
    """Those of the model that are trained; with several adapters, for each of them."""
    decayed: frozenset[str] | None
    """Those of the model with weight decay in a Trainer; None if its class is not known."""
    prefix: str
    """What the names of the model's begin with."""


def name_parameters(saved: Mapping[str, Any], candidates: Candidates, given: Sequence[Any] | None) -> NamedOptimizer:
    """Return ``saved``, an optimizer's state dict, by name.

    Args:
        saved: With indices or names for parameters.
        candidates: The parameters that there are.
        given: Their names in the optimizer's order, in a list or in one for each group; None to find them.

    Raises:
        CheckpointError: If it is not certain which parameter is which.
    """
    groups = saved["param_groups"]
    counts = [len(group["params"]) for group in groups]
    known = _known_names(groups, candidates) if given is None else _given_names(given, counts, candidates)
    order = None
    if known is None:
        order, known = _by_order(saved, counts, candidates)
    names = dict(
        pair for group, own in zip(groups, known, strict=True) for pair in zip(group["params"], own, strict=True)
    )
    named = [{**_options(group), "params": own} for group, own in zip(groups, known, strict=True)]
    return NamedOptimizer(named, {names[key]: entry for key, entry in saved["state"].items()}, order)


def trained_of(models: Sequence[Sequence[str]], state: Mapping[str, Any]) -> Sequence[str]:
    """Return the one of ``models``, the parameters trained with each adapter, that has most of those with a state."""
    return max(models, key=lambda names: len(set(state) & set(names)))


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _known_names(groups: Sequence[Mapping[str, Any]], candidates: Candidates) -> _Layout | None:
    """Return the names that the checkpoint has, None if it has none."""
    for key in ("param_names", "params"):
        found = [list(group.get(key, ())) for group in groups]
        if all(isinstance(name, str) for own in found for name in own) and any(found):
            return [[_full_name(name, candidates) for name in own] for own in found]
    return None


def _given_names(given: Sequence[Any], counts: Sequence[int], candidates: Candidates) -> _Layout:
    flat = [str(name) for part in given for name in ([part] if isinstance(part, str) else part)]
    if len(flat) != sum(counts):
        raise CheckpointError(f"`--parameters` has {len(flat)} names, but the optimizer has {sum(counts)} parameters.")
    return _cut([_full_name(name, candidates) for name in flat], counts)


def _full_name(name: str, candidates: Candidates) -> str:
    if name not in candidates.shapes and candidates.prefix + name in candidates.shapes:
        return candidates.prefix + name
    if name not in candidates.shapes:
        raise CheckpointError(f"The optimizer has a parameter `{name}`, which is not in `state_dict`.")
    return name


def _by_order(saved: Mapping[str, Any], counts: Sequence[int], candidates: Candidates) -> tuple[str, _Layout]:
    """Return the one order that fits in numbers and shapes, and the names in it; of adapters, the first that fits."""
    fitting: dict[tuple[tuple[str, ...], ...], str] = {}
    for model in candidates.models:
        for order, layout in _layouts(counts, candidates, model):
            if [len(own) for own in layout] == list(counts) and _fits(saved, layout, candidates.shapes):
                fitting.setdefault(tuple(map(tuple, layout)), order)
        if len(fitting) == 1:
            (names, order) = next(iter(fitting.items()))
            return order, [list(own) for own in names]
    problem = "more than one order fits" if fitting else "no usual order fits"
    raise CheckpointError(
        f"The optimizer state has no parameter names, and its groups of {', '.join(map(str, counts))} parameters "
        f"cannot be matched: {problem}{': ' if fitting else ''}{'; '.join(fitting.values())}. Pass the names in the "
        "order of the optimizer, a JSON list, as `--parameters FILE`, or convert with `--weights-only`."
    )


def _layouts(counts: Sequence[int], candidates: Candidates, model: Sequence[str]) -> Iterator[tuple[str, _Layout]]:
    """Yield the orders in which scripts give parameters to optimizers."""
    everything = list(candidates.shapes)
    frozen = {name for name in everything if name.startswith(candidates.prefix)} - set(model)
    whole = [("the LightningModule's parameters", everything), ("the model's parameters", list(model))]
    if frozen:
        trained = [name for name in everything if name not in frozen]
        whole.insert(1, ("the LightningModule's parameters that are trained", trained))
    for whose, names in whole:
        if len(names) == sum(counts):
            yield f"the order of {whose}", _cut(names, counts)
        old = [name for name in names if not any(part in name for part in _OLD_NO_DECAY)]
        yield (
            f"{whose} but those named bias or LayerNorm.weight, then these",
            [old, [name for name in names if name not in old]],
        )
    if candidates.decayed is not None:
        with_decay = [name for name in model if name in candidates.decayed]
        yield (
            "the model's parameters with weight decay, then those without, as in a Trainer",
            [with_decay, [name for name in model if name not in candidates.decayed]],
        )


def _cut(names: Sequence[str], counts: Sequence[int]) -> _Layout:
    left = list(names)
    return [[left.pop(0) for _ in range(count)] for count in counts]


def _fits(saved: Mapping[str, Any], layout: _Layout, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether each parameter's state has a tensor of its shape, or of its rows as in Adafactor, or none."""
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    names = [name for own in layout for name in own]
    for index, name in zip(indices, names, strict=True):
        tensors = [value for value in saved["state"].get(index, {}).values() if isinstance(value, Tensor)]
        found = {tuple(value.shape) for value in tensors if value.dim()}
        rows = shapes[name][:-1]
        if found and shapes[name] not in found and not (rows and rows in found):
            return False
    return True
