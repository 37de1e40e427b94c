"""The groups of an optimizer's parameters, and a schedule's values for each, in the layout that the target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hf_compat.errors import CheckpointError
from hf_compat.tools.convert.optimizer_names import NamedOptimizer

__all__ = ["Groups", "numbered", "regroup", "regroup_schedule"]

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


def _origin_of(own: Sequence[str], origin: Mapping[str, int], optimizer: NamedOptimizer, groups: Groups) -> int:
    """Return the group whose options those in ``own`` have."""
    numbers = sorted({origin[name] for name in own})
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
