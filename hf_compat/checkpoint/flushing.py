"""A folder's files on the disk: written early, while later files are made, and with checksums from the page cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

# Checksums of the files of a checkpoint, made while they are still in the page cache.


ALGORITHM = "xxh3_128"
"""An algorithm as fast as the memory, for damage that happens by itself; no protection from forgery."""

_EARLY_SIZE = 2**20
"""Bytes from which a file's checksum is worth making before the folder is complete."""
_QUIET = 0.1
"""Seconds without a change after which a file is taken for finished, a few times the resolution of file times."""
_RANK = re.compile(r"(?:^__|rank_|rng_state_)([0-9]+)")
"""The rank that wrote a file, in the names that torch, DeepSpeed and transformers give."""

_Stamp: TypeAlias = tuple[int, int, int, int]


def checksum(path: Path) -> str:
    """Return the checksum of the file ``path``, in hexadecimal digits."""
    import xxhash  # the first update step does without

    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def checksum_of_text(text: str) -> str:
    """Return the checksum of a file that contains ``text`` in UTF-8."""
    import xxhash

    return xxhash.xxh3_128(text.encode()).hexdigest()


class Checksums:
    """Checksums of the files of a folder, each made once unless the file changes afterwards."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[_Stamp, str]] = {}
        self._taken: dict[str, str] = {}

    def make_early(self, path: Path) -> None:
        """Make the checksum of ``path`` if it is large and seems finished; it is made again if the file changes."""
        status = path.stat()
        is_quiet = time.time() - status.st_mtime > _QUIET
        if status.st_size >= _EARLY_SIZE and is_quiet and path not in self._made:
            self._make(path)

    def take(self, others: Mapping[str, str]) -> None:
        """Use ``others``, which another node made of files that it wrote: path inside the folder → checksum."""
        self._taken.update(others)

    def of_folder(self, folder: Path, *, ranks: Collection[int] | None = None) -> dict[str, str]:
        """Return the checksum of each file in ``folder``, by its path inside with forward slashes.

        Args:
            folder: Nothing is written into it any more.
            ranks: Only files with the number of one of these ranks in their names. Default: all files.
        """
        sums = {}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if ranks is not None and _rank_of(path.name) not in ranks:
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                if path.is_file():
                    sums[name] = self._taken.get(name) or self._of(path)
        return sums

    def _of(self, path: Path) -> str:
        made = self._made.get(path)
        return made[1] if made is not None and made[0] == _stamp(path) else self._make(path)

    def _make(self, path: Path) -> str:
        stamp = _stamp(path)  # before the file is read: a change while it is read makes the checksum void
        digest = checksum(path)
        self._made[path] = stamp, digest
        return digest


def _rank_of(name: str) -> int | None:
    found = _RANK.search(name)
    return None if found is None else int(found[1])


def _stamp(path: Path) -> _Stamp:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# Starts writing a folder's files to disk while later files are still being written.


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
