"""A folder's files on the disk: begun to be written while later ones are made, and their checksums."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

# Checksums of the files of a checkpoint, made while they are still in the page cache.


ALGORITHM = "xxh3_128"
"""An algorithm as fast as the memory, for damage that happens by itself; no protection from forgery."""

_PART = 1 << 20
"""Bytes that are read at a time; four times as many as ``hashlib`` reads take a quarter less time."""
_RANK = re.compile(r"(?:^__|rank_|rng_state_)([0-9]+)")
"""The rank that wrote a file, in the names that torch, DeepSpeed and transformers give."""


def checksum(path: Path) -> str:
    """Return the checksum of the file ``path``, in hexadecimal digits."""
    import xxhash  # the first update step does without

    digest, part = xxhash.xxh3_128(), memoryview(bytearray(_PART))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(part):
            digest.update(part[:size])
    return digest.hexdigest()


def checksum_of_text(text: str) -> str:
    """Return the checksum of a file that contains ``text`` in UTF-8."""
    import xxhash

    return xxhash.xxh3_128(text.encode()).hexdigest()


def checksums_of(
    folder: Path, *, ranks: Collection[int] | None = None, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the checksum of each file in ``folder``, by its path inside with forward slashes.

    Args:
        folder: Nothing is written into it any more.
        ranks: Only files with the number of one of these ranks in their names. Default: all files.
        known: Checksums that another node has made of files that it wrote; those are not read.
    """
    sums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if ranks is not None and _rank_of(path.name) not in ranks:
            continue
        with suppress(FileNotFoundError):  # deleted meanwhile
            if path.is_file():
                sums[name] = (known or {}).get(name) or checksum(path)
    return sums


def _rank_of(name: str) -> int | None:
    found = _RANK.search(name)
    return None if found is None else int(found[1])


# Starts writing a folder's files to disk while later files are still being written.


_PERIOD = 0.003
"""Seconds from one look at the folder to the next; at least the CPU time of a look, since there may be many files."""
_SYNC_FILE_RANGE_WRITE = 2
"""A constant of Linux: begin to write pages that are not being written."""


@contextmanager
def flushing_early(folder: Path) -> Iterator[None]:
    """Context in which the system writes to the disk what ``folder`` contains so far; it has to be flushed at the end.

    An error of the disk is raised when the file is flushed. Systems without ``sync_file_range``, all but Linux, write
    nothing early.
    """
    if _sync_file_range() is None:
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
        for path in [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]:
            with suppress(OSError):  # it got its final name meanwhile; if it cannot be written, flushing tells
                if path.is_file():
                    begin_writing(path)
        took = time.thread_time() - began


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
