"""Ctrl-C inside a call of Lightning's trainer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["raising_keyboard_interrupt"]


@contextmanager
def raising_keyboard_interrupt() -> Iterator[None]:
    """Context in which a KeyboardInterrupt leaves ``fit``, ``validate`` or ``test`` as it was raised.

    Contract: Lightning handles one by ignoring further SIGINTs for good, and raises SystemExit in its place, with the
    KeyboardInterrupt as context.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        interrupt = stop.__context__
        if not isinstance(interrupt, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise interrupt from None
