"""Lets a ``StopIteration`` raised by a step or hook propagate like any other error.

Lightning's loops take it for the end of the data: the training would end as if it were done. So it goes through them as
another error. What a loader raises itself is not touched, and ends the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["StopIterationError", "unwraps_stop_iteration", "wraps_stop_iteration"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class StopIterationError(RuntimeError):
    """A step or a hook raised StopIteration; Python makes the same error of one that leaves a generator.

    Args:
        stop: What was raised.
    """

    def __init__(self, stop: StopIteration) -> None:
        super().__init__("A training step, an evaluation step or a callback raised StopIteration.")
        self.stop = stop


def wraps_stop_iteration(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``function``, which Lightning's loops call, so that a StopIteration leaves it as our error."""

    @wraps(function)
    def call(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*given, **named)
        except StopIteration as stop:
            raise StopIterationError(stop) from stop

    return call


def unwraps_stop_iteration(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``function``, which runs Lightning's loops, so that our error leaves it as what was raised."""

    @wraps(function)
    def call(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*given, **named)
        except StopIterationError as error:
            stop = error.stop
        raise stop  # outside of `except`, so that the context it was raised in is kept

    return call
