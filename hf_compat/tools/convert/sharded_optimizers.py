"""The states of optimizers in a folder of torch's distributed checkpoint, whose entries have paths as names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["optimizers_in"]


def optimizers_in(entries: Mapping[tuple[Any, ...], Any]) -> dict[str, dict[str, Any]]:
    """Return the state dict of each optimizer, by parameter name, under the first part of its entries' paths.

    Args:
        entries: Path → value, of a whole folder; paths that do not begin with ``"optimizer"`` are passed over.
    """
    states: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for path, value in entries.items():
        top = str(path[0])
        if not top.startswith("optimizer"):
            continue
        state, numbered = states.setdefault(top, {}), groups.setdefault(top, {})
        match path[1:]:
            case ("state", str(name), str(key)):
                state.setdefault(name, {})[key] = value
            case ("param_groups", int(number), str(key)):
                numbered.setdefault(number, {})[key] = value
            case ("param_groups",):
                groups[top] = dict(enumerate(value))
    return {
        top: {"state": state, "param_groups": [groups[top][number] for number in sorted(groups[top])]}
        for top, state in states.items()
    }
