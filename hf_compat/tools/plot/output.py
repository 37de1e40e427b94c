"""Writing pictures and pages: a file that was not made here is never replaced unasked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_compat.atomic_files import write_bytes
from hf_compat.errors import ReportError

__all__ = ["MADE_BY", "check_targets", "write_files"]

MADE_BY = "Made by hf-compat"
"""Stands near the beginning of each file that is made here."""
_HEAD = 8192
"""Bytes of a file in which it is looked for."""


def check_targets(targets: Sequence[Path], *, force: bool) -> None:
    """Refuse targets that cannot be written, or would replace what was not made here.

    Raises:
        ReportError: If there is one.
    """
    for target in targets:
        if not target.parent.is_dir():
            raise ReportError(f"`{target}` cannot be written: the folder `{target.parent}` does not exist.")
        if target.is_dir():
            raise ReportError(f"`{target}` is a folder: name a file.")
        if os.path.lexists(target) and not force and not _is_own(target):
            raise ReportError(
                f"`{target}` already exists and was not written by hf-compat. Choose another name, or pass `--force`."
            )


def write_files(contents: Mapping[Path, bytes]) -> list[str]:
    """Write each file, whole or not at all, and return what was done, a sentence each.

    Raises:
        ReportError: If one cannot be written.
    """
    done = []
    for target, content in contents.items():
        word = "Replaced" if os.path.lexists(target) else "Wrote"
        try:
            write_bytes(target, content)
        except OSError as error:
            raise ReportError(f"`{target}` cannot be written: {error}") from error
        done.append(f"{word} `{target}`.")
    return done


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MADE_BY.encode() in file.read(_HEAD)
    except OSError:
        return False
