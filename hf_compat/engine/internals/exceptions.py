"""Errors that leave Lightning's loops as they were raised: Ctrl-C, and the ``StopIteration`` of a step or hook.

Lightning's loops take a ``StopIteration`` for the end of the data, so that training would end as if it were done. So it
goes through them as another error. What a loader raises itself is not touched, and ends the epoch.

Their tracebacks leave out what only passes a call on, in Lightning and around it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import lightning
import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

import hf_compat

_P = ParamSpec("_P")
_R = TypeVar("_R")

_PACKAGE = os.path.dirname(hf_compat.__file__) + os.sep
_OVERRIDING = f"{_PACKAGE}overriding.py"
_PASS_ON = (os.path.dirname(lightning.__file__) + os.sep, f"{_PACKAGE}engine{os.sep}", _OVERRIDING)
"""How the files begin whose frames only pass a call on."""
FULL_TRACEBACKS = "HF_COMPAT_FULL_TRACEBACKS"
"""The variable of the environment that, if it is set, leaves all frames in tracebacks."""


def raise_keyboard_interrupt(pl_trainer: pl.Trainer) -> Callable[[], None]:
    """Have a KeyboardInterrupt leave the call that ``pl_trainer`` begins, or is inside of, as it was raised.

    Contract: Lightning handles one by ignoring further SIGINTs for good and, once ``_teardown`` has returned, which is
    called in every case, by ending the processes that it has started and raising SystemExit.

    Returns:
        What undoes it, for a call that ends without an error; after an error it is undone.
    """
    own = vars(pl_trainer)
    if "_teardown" in own:  # an evaluation inside a fit
        return lambda: None
    handler, handled_before = signal.getsignal(signal.SIGINT), sys.exception()

    def undo() -> None:
        own.pop("_teardown", None)

    def end_call() -> None:
        type(pl_trainer)._teardown(pl_trainer)
        error = sys.exception()
        if error is handled_before:
            return
        undo()
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, handler)
            launcher = pl_trainer.strategy.launcher
            if isinstance(launcher, _SubprocessScriptLauncher):
                launcher.kill(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            try:
                raise error
            finally:
                del error  # whose traceback has this frame

    own["_teardown"] = end_call
    return undo


@contextmanager
def raising_keyboard_interrupt(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Context in which a KeyboardInterrupt leaves calls of ``pl_trainer`` as it was raised."""
    undo = raise_keyboard_interrupt(pl_trainer)
    try:
        yield
    finally:
        undo()


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
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*args, **named)
        except StopIteration as stop:
            raise StopIterationError(stop) from stop

    return call


def unwraps_stop_iteration(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return ``function``, which runs Lightning's loops, so that our error leaves it as what was raised."""

    @wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*args, **named)
        except StopIterationError as error:
            stop = error.stop
        raise stop  # outside of `except`, so that the context it was raised in is kept

    return call


def shorten(error: BaseException) -> None:
    """Take the frames out of the traceback of ``error`` that only pass a call on to the Trainer or a user's method.

    They are Lightning's, and our own between Lightning and the Trainer, as long as one of the Trainer's follows: what
    Lightning calls otherwise, such as a strategy or a callback of its own, keeps all its frames.
    """
    if os.environ.get(FULL_TRACEBACKS):
        return
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    ours = [index for index, file in enumerate(files) if file.startswith(_PACKAGE) and not file.startswith(_PASS_ON)]
    last = max(ours, default=0)
    shown = [
        frame
        for index, (frame, file) in enumerate(zip(frames, files, strict=True))
        if index in (0, len(frames) - 1) or not file.startswith(_PASS_ON if index < last else _OVERRIDING)
    ]
    for frame, following in itertools.pairwise(shown):
        frame.tb_next = following
