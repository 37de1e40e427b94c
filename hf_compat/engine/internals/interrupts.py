"""Ctrl-C inside a call of Lightning's trainer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

__all__ = ["raise_keyboard_interrupt", "raising_keyboard_interrupt"]


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
            raise error

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
