"""Starts writing a folder's files to disk while later files are still being written."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hf_compat.checkpoint.checksums import Checksums

__all__ = ["begin_writing", "drop_cached", "flushing_early"]

_PERIOD = 0.003
"""Seconds from one look at the folder to the next; at least the CPU time of a look, since there may be many files."""
_SYNC_FILE_RANGE_WRITE = 2
"""A constant of Linux: begin to write pages that are not being written."""


@contextmanager
def flushing_early(folder: Path, checksums: Checksums) -> Iterator[None]:
    """Context in which the system writes to the disk what ``folder`` contains so far; it has to be flushed at the end.

    The checksums of large files are made as soon as they seem finished. An error of the disk is raised when the file is
    flushed. Systems without ``sync_file_range``, all but Linux, write nothing early.

    Args:
        folder: The folder.
        checksums: Where the checksums are kept.
    """
    if _sync_file_range() is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_begin_until, args=(ended, folder, checksums), name="hf_compat-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _begin_until(ended: threading.Event, folder: Path, checksums: Checksums) -> None:
    took = 0.0
    while not ended.wait(max(_PERIOD, took)):
        began = time.thread_time()
        files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
        for path in files:
            with suppress(OSError):  # it got its final name meanwhile; if it cannot be written, flushing tells
                if path.is_file():
                    begin_writing(path)
        took = time.thread_time() - began
        for path in files:
            with suppress(OSError):
                if not ended.is_set():
                    checksums.make_early(path)


def begin_writing(path: Path) -> None:
    """Begin to write ``path`` to the disk without waiting for it, unlike ``fsync``, which holds up who writes to it.

    Its content stays in the page cache, from which its checksum is made.
    """
    begin = _sync_file_range()
    if begin is None:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        begin(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
    finally:
        os.close(descriptor)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the C library's function, which Python's ``os`` does not have; None where there is none."""
    if os.name == "nt":
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


def drop_cached(path: Path) -> None:
    """Free the memory that holds a copy of ``path``, where it would displace the dataset; it is on the disk already."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
