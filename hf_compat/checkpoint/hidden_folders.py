"""Names of the hidden folders beside checkpoints, in which files are written, replaced, deleted or uploaded.

::

    .checkpoint-12.partial-<host>-<pid>-<token>     being written; becomes checkpoint-12
    .checkpoint-12.replaced-<host>-<pid>-<token>    the previous checkpoint-12, about to be deleted
    .checkpoint-12.deleted-<host>-<pid>-<token>     beyond ``save_total_limit``, about to be deleted
    .checkpoint-12.pushed-<host>-<pid>-<token>      a copy that is being uploaded; see ``hub.py``

Functions that list checkpoints, those of transformers included, ignore them.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HIDDEN_FOLDERS", "HiddenFolder", "final_name", "hidden_folders", "hidden_sibling"]

_KINDS = ("partial", "replaced", "deleted", "pushed")
_NAME = rf"\.(?P<kind>{'|'.join(_KINDS)})-(?P<host>[^/\\\s]{{0,255}}?)-(?P<pid>[0-9]+)-(?P<token>[0-9a-f]{{8}})"
_HIDDEN = re.compile(rf"\.(?P<final>.+){_NAME}")
"""The name of a hidden folder."""
_IN_TEXT = re.compile(rf"\.(?P<final>[^/\\\s'\"]{{1,255}}?){_NAME}")
"""The same within a path or a sentence; of a final name with spaces only the last word is found."""

HIDDEN_FOLDERS = tuple(f".*.{kind}-*" for kind in _KINDS)
"""Patterns of the names of hidden folders."""

# In containers, runs often have the same host name and process id: only the token distinguishes them.
_own_tokens: set[str] = set()


@dataclass(frozen=True, slots=True)
class HiddenFolder:
    """A hidden folder, and what its name says."""

    kind: str
    """What it is for; see the table in the module's docstring."""
    path: Path
    final: Path
    """The folder that it becomes, or was."""
    host: str
    pid: int
    """The process that made it."""
    token: str

    @classmethod
    def of(cls, path: Path) -> HiddenFolder:
        """Return the hidden folder ``path``, named by ``hidden_sibling``.

        Raises:
            ValueError: If it is not named so.
        """
        match = _HIDDEN.fullmatch(path.name)
        if match is None:
            raise ValueError(f"`{path}` is not named like a hidden folder.")
        return cls(
            match["kind"], path, path.with_name(match["final"]), match["host"], int(match["pid"]), match["token"]
        )

    @property
    def is_orphan(self) -> bool:
        """Whether the process that made it has ended, as far as that can be seen on this host."""
        if self.host != _host():
            return False
        return self.token not in _own_tokens if self.pid == os.getpid() else not _is_alive(self.pid)


def hidden_folders(parent: Path) -> Iterator[HiddenFolder]:
    """Return the hidden folders in ``parent``."""
    return (HiddenFolder.of(path) for path in parent.iterdir() if _HIDDEN.fullmatch(path.name))


def hidden_sibling(final: Path, kind: str) -> Path:
    """Return a new name next to ``final`` that ``hidden_folders`` recognises.

    Args:
        final: The checkpoint folder that it belongs to.
        kind: What it is for; see the table in the module's docstring.
    """
    token = secrets.token_hex(4)
    _own_tokens.add(token)
    return final.with_name(f".{final.name}.{kind}-{_host()}-{os.getpid()}-{token}")


def final_name(text: str) -> str:
    """Return the path or sentence ``text`` with each hidden folder in it under its final name.

    For messages: code that writes a file knows the hidden folder alone, and a user the final one.
    """
    return _IN_TEXT.sub(lambda match: match["final"], text)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C, not a question
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
