"""Log records and errors name a checkpoint by its final folder while it lies in a hidden one; see ``publish``."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["KINDS", "naming_final_folders", "with_final_names"]

KINDS = ("partial", "replaced", "deleted", "pushed")
"""What hidden folders are for; see the table in ``publish``."""
_HIDDEN = re.compile(
    rf"(?<![^\s/\\'\"`(\[])\.(?P<final>(?:(?!(?<=[\s`(\[])\.)[^/\\'\"])+?)\.(?P<kind>{'|'.join(KINDS)})"
    rf"-(?P<host>[^/\\\s]{{0,255}})-(?P<pid>[0-9]+)-(?P<token>[0-9a-f]{{8}})"
)
"""The name of a hidden folder, alone or in a path or a sentence."""

_lock = threading.Lock()
_open_blocks = 0


def with_final_names(text: str) -> str:
    """Return ``text`` with the final names of the hidden folders in it."""
    if not any(f".{kind}-" in text for kind in KINDS):  # nearly all texts
        return text
    return _HIDDEN.sub(lambda match: match["final"], text)


@contextmanager
def naming_final_folders() -> Iterator[None]:
    """Context in which log records of all libraries, and errors that leave it, have final names.

    What is called to write a checkpoint, a user's method or ``save_pretrained``, knows the hidden folder alone. Blocks
    may overlap, also those of several threads.
    """
    _enter()
    try:
        yield
    except BaseException as error:
        _rename_in(error)
        raise
    finally:
        _leave()


class _Records:
    """Makes log records by ``make``, with final names."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self.make = make

    def __call__(self, *args: object, **kwargs: object) -> logging.LogRecord:
        record = self.make(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:  # arguments that do not fit are reported when the record is handled
            return record
        renamed = with_final_names(text)
        if renamed != text:
            record.msg, record.args = renamed, ()
        return record


def _enter() -> None:
    global _open_blocks
    with _lock:
        _open_blocks += 1
        if _open_blocks == 1:
            logging.setLogRecordFactory(_Records(logging.getLogRecordFactory()))


def _leave() -> None:
    global _open_blocks
    with _lock:
        _open_blocks -= 1
        current = logging.getLogRecordFactory()
        if _open_blocks == 0 and isinstance(current, _Records):  # else one was set on top of it, which calls it
            logging.setLogRecordFactory(current.make)


def _rename_in(error: BaseException) -> None:
    """Put final names into the texts of ``error`` and of those that led to it."""
    found: list[BaseException] = []
    rest: list[BaseException | None] = [error]
    while rest:
        each = rest.pop()
        if each is None or any(each is other for other in found):
            continue
        found.append(each)
        rest += [each.__cause__, each.__context__]
        each.args = tuple(with_final_names(text) if isinstance(text, str) else text for text in each.args)
        if isinstance(each, OSError):
            for name in ("filename", "filename2"):
                path = getattr(each, name)
                if isinstance(path, str | Path):
                    setattr(each, name, with_final_names(str(path)))
