"""Starts writing a folder's files to disk while later files are still being written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["flushing_early"]

_PERIOD = 0.003
"""Seconds from one look at the folder to the next; at least the CPU time of a look, since there may be many files."""


@contextmanager
def flushing_early(folder: Path) -> Iterator[None]:
    """Context in which the system writes to the disk what ``folder`` contains so far; it has to be flushed at the end.

    What is on the disk leaves the page cache, where it would displace the dataset. An error of the disk is raised when
    the file is flushed. Systems without ``posix_fadvise``, such as macOS and Windows, write nothing early.
    """
    if not hasattr(os, "posix_fadvise"):
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_begin_until, args=(ended, folder), name="hf_compat-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _begin_until(ended: threading.Event, folder: Path) -> None:
    took = 0.0
    while not ended.wait(max(_PERIOD, took)):
        began = time.thread_time()
        for path in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
            with suppress(OSError):  # it got its final name meanwhile; if it cannot be written, flushing tells
                if path.is_file():
                    _begin_writing(path)
        took = time.thread_time() - began


def _begin_writing(path: Path) -> None:
    """Begin to write ``path`` to the disk without waiting for it, unlike ``fsync``, which holds up who writes to it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
