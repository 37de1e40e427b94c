"""Flushing a folder's files to the disk while they are being written, so that little is left to wait for at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_compat.checkpoint.publish import flush_file

__all__ = ["flushing_early"]

_PERIOD = 0.02
"""Seconds from one look at the folder to the next."""


@contextmanager
def flushing_early(folder: Path) -> Iterator[None]:
    """Context in which a thread flushes what has been written to ``folder`` so far; nothing is certain to be flushed.

    Raises:
        OSError: At the end, if the system could not write a file; whoever flushes it next might not be told.
    """
    ended, failures = threading.Event(), list[OSError]()
    thread = threading.Thread(target=_flush_until, args=(ended, folder, failures), name="hf_compat-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _flush_until(ended: threading.Event, folder: Path, failures: list[OSError]) -> None:
    flushed: dict[Path, int] = {}
    while not ended.wait(_PERIOD):
        try:
            for path in folder.rglob("*"):
                size = path.stat().st_size
                if path.is_file() and size != flushed.get(path):
                    flush_file(path)
                    flushed[path] = size
        except FileNotFoundError:  # a file that got its final name meanwhile
            continue
        except OSError as error:
            failures.append(error)
            return
