"""Keeps a recorded run out of the user's folders: it works in a copy, and writes elsewhere are refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_compat.errors import ReportError

_FIELDS = ("output_dir", "logging_dir")
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR")
_USUAL_CACHES = ("~/.cache", "~/.triton", "~/.nv", "~/.config")
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.link": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "shutil.rmtree": ((0, 1),),
}
"""Audit event → of each path that it changes, where the path is among its arguments, and the folder it starts from."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules"})
_MOST_BYTES = 2**30


class Outputs:
    """Maps the output folders that a script names to folders inside ``folder``.

    Args:
        folder: The folder that holds them.
        copy: The copy of the working directory. A folder that the script names in it becomes a link to its replacement,
            for scripts that write there by their own path.
        protected: Gets all other folders that the script names.
    """

    def __init__(self, folder: Path, copy: Path, protected: list[str]) -> None:
        self._folder = folder
        self._copy = copy
        self._protected = protected
        self._moved: dict[str, str] = {}

    def redirect_arguments(self) -> None:
        """Have all training arguments built from here on write into ``folder`` alone: no Hub, no trackers."""
        import transformers

        kind = transformers.TrainingArguments
        own_completion = kind.__post_init__

        def __post_init__(built: Any) -> None:  # noqa: N807
            for field in _FIELDS:
                if getattr(built, field, None) is not None:
                    setattr(built, field, self._instead_of(str(getattr(built, field))))
            built.push_to_hub = False
            built.report_to = "none"
            own_completion(built)

        kind.__post_init__ = __post_init__
        transformers.Trainer.push_to_hub = lambda *_, **__: None

    def _instead_of(self, named: str) -> str:
        full = os.path.realpath(named)
        if full.startswith(os.path.realpath(self._folder) + os.sep):
            return named
        if full not in self._moved:
            instead = self._folder / str(len(self._moved) + 1) / (Path(full).name or "output")
            self._moved[full] = str(instead)
            if self._copy in Path(full).parents:
                _link(Path(full), instead)
            else:
                self._protected.append(full)
        return self._moved[full]


def _link(path: Path, target: Path) -> None:
    """Have ``path`` lead to the folder ``target``, unless something is there."""
    target.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.symlink_to(target, target_is_directory=True)


def refuse_writes(protected: list[str], allowed: Sequence[str]) -> None:
    """Raise an error, from here on, when Python code changes a file in a folder of ``protected``.

    Args:
        protected: Real paths; those that are added later count too.
        allowed: Folders in them that may be written to, as may caches and the folder for temporary files. Of two
            folders that a file is in, the inner one counts.
    """
    caches = [os.environ[name] for name in _CACHES if name in os.environ]
    caches += [os.path.expanduser(folder) for folder in _USUAL_CACHES]
    free = [os.path.realpath(path) for path in (*allowed, *caches, tempfile.gettempdir())]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        for path in _changed_by(event, args):
            full = os.path.realpath(path)
            is_refused = _depth(full, protected) > _depth(full, free)
            if is_refused and not (event == "os.mkdir" and os.path.isdir(full)):
                raise PermissionError(
                    f"hf-compat verify: the script tried to modify `{full}`. Verified runs must not change your "
                    "folders: write below `args.output_dir` or, without `--no-copy`, to a relative path."
                )

    sys.addaudithook(watch)


def _changed_by(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    if event == "open":
        path, mode, flags = args
        changes = any(letter in "wax+" for letter in mode) if isinstance(mode, str) else bool((flags or 0) & _WRITING)
        found = [(path, None)] if changes else []
    else:
        found = [(args[name], None if start is None else args[start]) for name, start in _CHANGES.get(event, ())]
    for name, start in found:
        folder = _folder_of(start)
        if folder is not None and isinstance(name, str | bytes | os.PathLike):
            yield os.path.join(folder, os.fsdecode(name))


def _folder_of(descriptor: int | None) -> str | None:
    """Return the path of an open folder, empty for the working directory; None if this is not Linux.

    There `shutil.rmtree`, which deletes by the names in open folders, is judged by the whole folder alone.
    """
    if descriptor is None or descriptor < 0:
        return ""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def _depth(path: str, folders: Sequence[str]) -> int:
    """Return the length of the longest of ``folders`` that ``path`` is in, 0 if it is in none."""
    prefixes = (folder.rstrip(os.sep) + os.sep for folder in folders)
    return max((len(prefix) for prefix in prefixes if (path + os.sep).startswith(prefix)), default=0)


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
