"""The optimizer of a checkpoint: the names of its parameters, and their groups in the layout that the target needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hf_compat.errors import CheckpointError

# Recovers the parameter names of an optimizer state that Lightning and transformers store by position only.


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


def name_parameters(
    saved: Mapping[str, Any], candidates: Candidates, parameter_names: Sequence[Any] | None
) -> NamedOptimizer:
    """Return ``saved``, an optimizer's state dict, by name.

    Args:
        saved: With indices or names for parameters.
        candidates: The parameters that there are.
        parameter_names: Their names in the optimizer's order, in a list or in one for each group; None to find them.

    Raises:
        CheckpointError: If it is not certain which parameter is which.
    """
    groups = saved["param_groups"]
    counts = [len(group["params"]) for group in groups]
    known = (
        _known_names(groups, candidates)
        if parameter_names is None
        else _given_names(parameter_names, counts, candidates)
    )
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


def _given_names(names: Sequence[Any], counts: Sequence[int], candidates: Candidates) -> _Layout:
    flat = [str(name) for part in names for name in ([part] if isinstance(part, str) else part)]
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
    folder = "" if candidates.decayed else "the model's folder as `--model`, for the order of a Trainer, or "
    raise CheckpointError(
        f"The optimizer state has no parameter names, and its groups of {', '.join(map(str, counts))} parameters "
        f"cannot be matched: {problem}{': ' if fitting else ''}{'; '.join(fitting.values())}. Pass {folder}the names "
        "in the order of the optimizer, a JSON list, as `--parameters FILE`, or convert with `--weights-only`."
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


# The groups of an optimizer's parameters, and a schedule's values for each, in the layout that the target needs.


Groups = Literal["decay", "one", "keep"]
"""With weight decay and without, as a Trainer makes them; one group; as they are."""
_LISTS = frozenset({"base_lrs", "base_momentums", "lr_lambdas", "max_lrs", "max_momentums", "min_lrs", "_last_lr"})
"""Entries of a schedule's state with a value for each group."""


def regroup(
    optimizer: NamedOptimizer, order: Sequence[str], decayed: frozenset[str] | None, groups: Groups
) -> tuple[NamedOptimizer, list[int]]:
    """Return ``optimizer`` with the parameters of ``order`` alone, in other groups, and the former group of each.

    Args:
        optimizer: By name.
        order: The parameters that the target has, in its order.
        decayed: Those with weight decay in a Trainer; None if the model's class is not known.
        groups: The groups to make.

    Raises:
        CheckpointError: If a new group would hold parameters with different options, or the groups are unknown.
    """
    wanted = set(order)
    origin = {name: number for number, group in enumerate(optimizer.groups) for name in group["params"]}
    if groups == "keep":
        kept = [[name for name in group["params"] if name in wanted] for group in optimizer.groups]
        layout = [(number, own) for number, own in enumerate(kept) if own or not optimizer.groups[number]["params"]]
    else:
        if groups == "decay" and decayed is None:
            raise CheckpointError(
                "`--groups decay`: which parameters have weight decay in a Trainer is only known for transformers "
                "models. Pass the model's configuration as `--model`, with transformers installed, or `--groups keep`."
            )
        present = [name for name in order if name in origin]
        parts = [present]
        if groups == "decay":
            assert decayed is not None, "checked above"
            parts = [[name for name in present if (name in decayed) == with_decay] for with_decay in (True, False)]
        layout = [(_origin_of(own, origin, optimizer, groups), own) for own in parts]
    made = [{**optimizer.groups[number], "params": own} for number, own in layout]
    state = {name: entry for name, entry in optimizer.state.items() if name in wanted}
    return NamedOptimizer(made, state, optimizer.by_order), [number for number, _ in layout]


def _origin_of(group: Sequence[str], origin: Mapping[str, int], optimizer: NamedOptimizer, groups: Groups) -> int:
    """Return the group whose options those in ``group`` have."""
    numbers = sorted({origin[name] for name in group})
    if not numbers:
        return len(optimizer.groups) - 1
    options = [{**optimizer.groups[number], "params": None} for number in numbers]
    for other in options[1:]:
        different = [name for name, value in options[0].items() if other.get(name) != value]
        if different:
            raise CheckpointError(
                f"`--groups {groups}`: a group would hold parameters with different options: "
                f"{', '.join(f'{name}={options[0][name]!r} and {other.get(name)!r}' for name in different)}. Use "
                "`--groups keep`, and pass the run an optimizer with the same groups."
            )
    return numbers[0]


def regroup_schedule(state: Mapping[str, Any], former: Sequence[int], count: int) -> dict[str, Any]:
    """Return a schedule's state with the values of the group ``former[i]`` of ``count`` for each new group ``i``."""
    made = dict(state)
    for name, value in state.items():
        if name in _LISTS and isinstance(value, list | tuple) and len(value) == count:
            made[name] = type(value)(value[number] for number in former)
        elif name == "_schedulers" and isinstance(value, list):
            made[name] = [regroup_schedule(each, former, count) for each in value]
    return made


def numbered(optimizer: NamedOptimizer) -> dict[str, Any]:
    """Return the state dict with indices for parameters, in the order of the groups."""
    index = {name: number for number, name in enumerate(name for group in optimizer.groups for name in group["params"])}
    return {
        "state": {index[name]: optimizer.state[name] for name in index if name in optimizer.state},
        "param_groups": [{**group, "params": [index[name] for name in group["params"]]} for group in optimizer.groups],
    }
