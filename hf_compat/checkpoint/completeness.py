"""Checking whether a checkpoint folder is complete, by hf_compat's completion marker or by the files in it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint.names import (
    LIGHTNING_MARKER_NAME,
    SHARDED_METADATA_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from hf_compat.checkpoint.weight_files import damage
from hf_compat.errors import CheckpointError

__all__ = [
    "Marker",
    "differences",
    "file_sizes",
    "incomplete_reason",
    "incomplete_reason_of_any",
    "is_complete",
    "marker_text",
    "read_marker",
    "write_marker",
]

_FORMAT = 1
# Text files may be edited by hand or by a callback after the save; the others are written once.
_OF_A_TRAINER = (LIGHTNING_MARKER_NAME, TRAINER_STATE_NAME, TRAINING_ARGS_NAME)
"""Files that a Trainer writes, ours or transformers', and a loop of one's own does not."""
_BINARY_SUFFIXES = frozenset({".bin", ".distcp", ".pt", ".pth", ".safetensors"})


@dataclass(frozen=True, slots=True)
class Marker:
    """What ``lightning.json`` says of the checkpoint that it completes."""

    step: int
    """The update step of the checkpoint."""
    run_id: str | None
    """The run that wrote it; a resumed run has the same one."""
    files: dict[str, int]
    """The size in bytes of each file, by its path inside the folder with forward slashes."""


def write_marker(folder: Path, *, step: int, run_id: str | None = None, foreign: Collection[str] = ()) -> None:
    """Write ``lightning.json``, which lists all other files of ``folder``.

    Args:
        folder: The checkpoint.
        step: Its update step.
        run_id: The run that wrote it.
        foreign: Names of files and folders in ``folder`` that are not listed: whoever put them there may delete them.
    """
    sizes = {name: size for name, size in file_sizes(folder).items() if PurePosixPath(name).parts[0] not in foreign}
    text = marker_text(Marker(step=step, run_id=run_id, files=sizes))
    (folder / LIGHTNING_MARKER_NAME).write_text(text, encoding="utf-8")


def marker_text(marker: Marker) -> str:
    """Return the content of ``lightning.json`` that says ``marker``."""
    content = {"files": marker.files, "format": _FORMAT, "run_id": marker.run_id, "step": marker.step}
    return json.dumps(content, indent=2) + "\n"


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file in ``folder`` but ``lightning.json``, by its path inside with forward slashes."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # somebody deleted it meanwhile
            if path.is_file() and path != folder / LIGHTNING_MARKER_NAME:
                sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes


def read_marker(folder: Path) -> Marker | None:
    """Return what ``lightning.json`` says, None if there is none: hf_compat did not write the folder.

    Raises:
        CheckpointError: If it cannot be read, or a newer hf_compat wrote it.
    """
    path = folder / LIGHTNING_MARKER_NAME
    if not path.is_file():
        return None
    content = read_json_object(path)
    if content.get("format") != _FORMAT:
        raise CheckpointError(f"`{path}` has format {content.get('format')!r}, this hf_compat reads {_FORMAT} only.")
    step, run_id, files = content.get("step"), content.get("run_id"), content.get("files")
    if (
        not isinstance(step, int)
        or not isinstance(run_id, str | None)
        or not isinstance(files, dict)
        or not all(isinstance(size, int) for size in files.values())
    ):
        raise CheckpointError(f"`{path}` is damaged: `step`, `run_id` or `files` is not what hf_compat writes.")
    return Marker(step=step, run_id=run_id, files=files)


def incomplete_reason(path: str | os.PathLike[str]) -> str | None:
    """Return why the checkpoint folder ``path`` cannot be resumed from, None if it can.

    With hf_compat's marker, every file that it lists has to be there, binary ones in their size. Without it,
    transformers wrote the folder: ``trainer_state.json``, which it writes last, and the headers of weights and states
    have to be readable.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            return "the folder does not exist."
        marker = read_marker(folder)
        if marker is None or TRAINER_STATE_NAME in marker.files:
            read_json_object(folder / TRAINER_STATE_NAME)
        return next(damage(folder) if marker is None else differences(folder, marker), None)
    except (CheckpointError, OSError) as error:
        return str(error)


def incomplete_reason_of_any(path: str | os.PathLike[str]) -> str | None:
    """Return why the folder ``path`` is no whole checkpoint, of a Trainer or of a loop of one's own; None if it is.

    Which files a loop of one's own writes is not known: there has to be something, and what can be checked is.
    """
    folder = Path(path)
    if any((folder / name).exists() for name in _OF_A_TRAINER):
        return incomplete_reason(folder)
    try:
        return next(damage(folder, needs_weights=False), None) if any(folder.iterdir()) else "the folder is empty."
    except OSError as error:
        return str(error)


def is_complete(path: str | os.PathLike[str]) -> bool:
    """Return whether the checkpoint folder ``path`` can be resumed from."""
    return incomplete_reason(path) is None


def differences(folder: Path, marker: Marker) -> Iterator[str]:
    """Yield each difference between ``folder`` and its ``marker``: a missing file, or a binary one of another size."""
    for name, size in marker.files.items():
        path = folder / name
        if ".." in PurePosixPath(name).parts or path == Path(name):
            yield f"`{LIGHTNING_MARKER_NAME}` lists `{name}`, outside its folder: do not trust this checkpoint."
        elif not path.is_file():
            yield f"`{name}` is missing."
        elif (path.suffix in _BINARY_SUFFIXES or path.name == SHARDED_METADATA_NAME) and path.stat().st_size != size:
            yield f"`{name}` has {path.stat().st_size} bytes, expected {size}."
