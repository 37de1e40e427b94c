"""A copy of the working directory in which a script may read and write as in the original."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hf_compat.errors import ReportError

__all__ = ["copy_working_directory"]

_LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules"})
_MOST_BYTES = 2**30


def copy_working_directory(source: Path, target: Path) -> list[str]:
    """Copy a folder without version control, caches and virtual environments, and return where its links lead.

    Raises:
        ReportError: If it is too large, or a file in it cannot be read.
    """
    try:
        return _copy(source, target)
    except OSError as error:
        raise ReportError(
            f"`{source}` cannot be copied: {error}. Start from another folder, or pass `--no-copy`."
        ) from error


def _copy(source: Path, target: Path) -> list[str]:
    links: list[str] = []
    total = 0
    pending = [source]
    while pending:
        folder = pending.pop()
        goal = target / folder.relative_to(source)
        goal.mkdir(parents=True, exist_ok=True)
        with os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    links.append(os.path.realpath(path))
                    (goal / entry.name).symlink_to(links[-1])
                elif entry.is_dir() and not _is_left_out(path, target):
                    pending.append(path)
                elif entry.is_file():
                    total += entry.stat().st_size
                    _refuse_above(total, source)
                    shutil.copy2(path, goal / entry.name)
    return links


def _is_left_out(folder: Path, target: Path) -> bool:
    return (
        folder.name in _LEFT_OUT
        or (folder / "pyvenv.cfg").exists()
        or folder.resolve() in (target.resolve(), *target.resolve().parents)
    )


def _refuse_above(size: int, source: Path) -> None:
    if size > _MOST_BYTES:
        raise ReportError(
            f"`{source}` has more than 1 GiB of files, and each compared run works in a copy of it. Start from a "
            "smaller folder, or pass `--no-copy`: the script then runs in the folder itself, and may read but not "
            "write there."
        )
