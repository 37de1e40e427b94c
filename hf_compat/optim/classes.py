"""``Adafactor`` and ``GreedyLR``: transformers' own classes where it is installed, so that ``isinstance`` holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_compat.optim import adafactor, greedy
from hf_compat.upstream_names import find_upstream

_MODULE = "transformers.optimization"


def adafactor_class() -> Callable[..., Any]:
    """Return transformers' ``Adafactor`` if it is installed, else ours, which has the same numbers."""
    return find_upstream("Adafactor", _MODULE) or adafactor.Adafactor


def greedy_class() -> Callable[..., Any]:
    """Return transformers' ``GreedyLR`` if it is installed and has one, else ours, which has the same numbers."""
    return find_upstream("GreedyLR", _MODULE) or greedy.GreedyLR


_CLASSES = {"Adafactor": adafactor_class, "GreedyLR": greedy_class}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _CLASSES[name]()
