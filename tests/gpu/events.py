"""A record of all that makes the host wait for the device, and of races between streams."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.gpu.device import extension

NAMED = ("hf_compat", "transformers", "accelerate", "lightning", "torch/optim", "torch/amp")
"""Packages whose frames are kept; those of the test's own files are, too."""
DEPTH = 7
"""Innermost frames that are kept of each event."""


class Event(NamedTuple):
    """Something that happened on the device.

    Attributes:
        kind: ``read`` (a copy to the host, ``item()``), ``h2d`` (a blocking copy to the device), ``sync`` (another call
            that waits) or ``race`` (memory that two streams use without waiting for each other).
        detail: The operation, and the size of a copy.
        frames: ``file:line:function``, the innermost last.
    """

    kind: str
    detail: str
    frames: tuple[str, ...]


@contextmanager
def watching(*kinds: str) -> Iterator[list[Event]]:
    """Collect the events of the block, of all threads; those of ``kinds``, or all."""
    events: list[Event] = []
    lock = threading.Lock()

    def keep(kind: str, detail: str) -> None:
        if not kinds or kind in kinds:
            with lock:
                events.append(Event(kind, detail, _frames()))

    extension().set_hook(keep)
    try:
        yield events
    finally:
        extension().set_hook(None)


def summary(events: list[Event], *, depth: int = 2) -> Counter[tuple[str, str, tuple[str, ...]]]:
    """Return how often each kind of event came from which ``depth`` innermost frames; sizes are left out."""
    return Counter((event.kind, event.detail.split(" bytes")[-1], event.frames[-depth:]) for event in events)


def _frames() -> tuple[str, ...]:
    found = []
    for frame in traceback.extract_stack()[:-2]:
        name = frame.filename.split("site-packages/")[-1]
        if "/hf_compat/" in name:
            name = "hf_compat/" + name.rsplit("/hf_compat/", 1)[-1]
        if any(part in name for part in NAMED) or "/site-packages/" not in frame.filename:
            found.append(f"{name}:{frame.lineno}:{frame.name}")
    return tuple(found[-DEPTH:])
