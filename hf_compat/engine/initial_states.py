"""The user's Lightning callbacks as they were given: each run begins with them so."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader, Dataset

_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, PurePath, timedelta, torch.dtype, torch.device),
    *(type, FunctionType, BuiltinFunctionType, MethodType),
)
"""What does not change."""
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_COPIED = (np.ndarray, np.generic, Random, torch.Generator)
_LEFT_ALONE = (Callback, Logger, Dataset, DataLoader)
"""What a callback has from others, even if it made it itself."""
_METRICS = ("Metric", "MetricCollection")


class InitialStates:
    """The attributes with which each run of a Trainer begins: those of its Lightning callbacks before the first.

    What a user assigns to a callback between two runs counts as given, what runs and evaluations leave in it does not.
    An attribute that a run rebinds is put back. One that it may have changed in place is put back as a copy if it
    is data, and if the callback alone has it: a model, or a list into which a user has a callback write, stays.
    """

    def __init__(self) -> None:
        self._states: list[_InitialState] = []

    def restore(self, callbacks: Sequence[Callback]) -> None:
        """Begin a fit: give ``callbacks`` the attributes that they were given."""
        self._begin(callbacks)
        for state in self._states:
            state.restore()

    def end(self) -> None:
        """End a run."""
        for state in self._states:
            state.end()

    @contextmanager
    def evaluating(self, callbacks: Sequence[Callback]) -> Iterator[None]:
        """Context of an evaluation outside of a run, which goes on with ``callbacks`` as they are."""
        self._begin(callbacks)
        try:
            yield
        finally:
            self.end()

    def _begin(self, callbacks: Sequence[Callback]) -> None:
        known = {id(state.callback): state for state in self._states}
        self._states = [known.get(id(callback)) or _InitialState(callback) for callback in callbacks]
        for state in self._states:
            state.begin()


class _InitialState:
    """The attributes of one callback as it was given.

    Args:
        callback: The callback.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self._initial: dict[str, Any] = {}
        self._copied: set[str] = set()
        """Names of the attributes in ``_initial`` that are copies."""
        self._left: dict[str, Any] | None = {}
        """The attributes as the last run left them; None in a run."""

    def begin(self) -> None:
        """Take what the user has changed since the last run."""
        if self._left is None:
            return  # a run goes on, or begins again
        attributes, left = vars(self.callback), self._left
        changed = [name for name in attributes if name not in left or left[name] is not attributes[name]]
        for name in [*(name for name in left if name not in attributes), *changed]:
            self._initial.pop(name, None)
            self._copied.discard(name)
        for name in changed:
            if _is_own(attributes, name):
                try:
                    self._initial[name] = copy.deepcopy(attributes[name])
                    self._copied.add(name)
                    continue
                except Exception:  # of any class, by what cannot be copied
                    pass
            self._initial[name] = attributes[name]
        self._left = None

    def restore(self) -> None:
        """Put back the attributes."""
        attributes = vars(self.callback)
        attributes.clear()
        for name, value in self._initial.items():
            attributes[name] = copy.deepcopy(value) if name in self._copied else value

    def end(self) -> None:
        """Note what the run has left."""
        if self._left is None:
            self._left = dict(vars(self.callback))


def _is_own(attributes: Mapping[str, Any], name: str) -> bool:
    """Return whether an attribute is data that may change in place, and that nothing else refers to."""
    alone = {name: object()}
    if isinstance(attributes[name], _ATOMS) or sys.getrefcount(attributes[name]) > sys.getrefcount(alone[name]):
        return False
    try:
        return _is_data(attributes[name], set())
    except Exception:  # of any class, by a property or by what is nested too deeply
        return False


def _is_data(value: Any, seen: set[int]) -> bool:
    """Return whether ``value`` consists of numbers, strings, tensors, containers and objects with such attributes."""
    if id(value) in seen or isinstance(value, (*_ATOMS, *_COPIED)) or _is_metric(value):
        return True
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return not value.requires_grad
    if isinstance(value, dict):
        return all(_is_data(one, seen) for pair in value.items() for one in pair)
    if isinstance(value, _CONTAINERS):
        return all(_is_data(one, seen) for one in value)
    if isinstance(value, _LEFT_ALONE) or not hasattr(value, "__dict__"):
        return False
    return all(_is_data(one, seen) for one in vars(value).values())


def _is_metric(value: Any) -> bool:
    """Return whether ``value`` is of torchmetrics, which may not have been imported."""
    kinds = type(value).__mro__
    return any(kind.__name__ in _METRICS and kind.__module__.startswith("torchmetrics.") for kind in kinds)
