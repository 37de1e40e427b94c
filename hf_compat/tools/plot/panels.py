"""Grouping of curves into panels: a panel for the losses, and one for each metric, in training and evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Panel", "is_evaluation", "measures_speed", "panels_of"]

_EVALUATION = re.compile(r"(eval|test|predict)_")
_TITLES = {"loss": "Loss", "learning_rate": "Learning rate", "grad_norm": "Gradient norm"}
_LAST = ("learning_rate", "grad_norm")
_OF_SPEED = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis."""

    title: str
    names: tuple[str, ...]
    """Their names in the logs."""


def is_evaluation(name: str) -> bool:
    """Return whether a name in the logs is that of an evaluation."""
    return _EVALUATION.match(name) is not None


def measures_speed(name: str) -> bool:
    """Return whether a name in the logs is of time or memory: what it measures is the machine, not the model."""
    return name.endswith(_OF_SPEED) or "_mem_" in name


def panels_of(names: Iterable[str]) -> Sequence[Panel]:
    """Return the panels for curves of these names: losses, metrics, learning rate and gradient norm, all others."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_measured(name), []).append(name)
    order = sorted(groups, key=lambda measured: _place(measured, groups[measured]))
    return [Panel(_TITLES.get(measured, measured), tuple(groups[measured])) for measured in order]


def _measured(name: str) -> str:
    """Return what is measured, in training and in evaluation alike: ``accuracy`` for ``eval_accuracy``."""
    if not is_evaluation(name):
        return name
    return "loss" if name.endswith("_loss") else name.partition("_")[2]


def _place(measured: str, names: Sequence[str]) -> int:
    if measured == "loss":
        return 0
    if measured in _LAST:
        return 2 + _LAST.index(measured)
    return 1 if any(map(is_evaluation, names)) else 4
