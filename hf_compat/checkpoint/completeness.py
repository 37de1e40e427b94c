"""``lightning.json``, which lists the files of a checkpoint folder, and whether a folder can be resumed from.

A folder is complete because it was renamed into place. What is changed in it later, by a callback perhaps, is its
owner's business: a file that is gone is not resumed, as with transformers. What is cut short is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint.checksums import ALGORITHM, checksum_of_text
from hf_compat.checkpoint.names import (
    LIGHTNING_MARKER_NAME,
    SHARDED_METADATA_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from hf_compat.checkpoint.weight_files import WEIGHT_NAMES, damage, has_weights, is_weight_file, is_whole
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
_SELF_CONTAINED_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".safetensors"})
_BINARY_SUFFIXES = _SELF_CONTAINED_SUFFIXES | {".distcp"}
_OF_A_TRAINER = (LIGHTNING_MARKER_NAME, TRAINER_STATE_NAME, TRAINING_ARGS_NAME)
"""Files that a Trainer writes, ours or transformers', and a loop of one's own does not."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of ``lightning.json`` of a checkpoint."""

    step: int
    """The update step of the checkpoint."""
    run_id: str | None
    """The run that wrote it; a resumed run has the same one."""
    files: dict[str, int]
    """The size in bytes of each file, by its path inside the folder with forward slashes."""
    checksums: dict[str, str] = field(default_factory=dict)
    """The checksum of each file when it was saved; empty if an older hf_compat wrote the checkpoint."""


def write_marker(
    folder: Path, *, step: int, run_id: str | None = None, checksums: Mapping[str, str] | None = None
) -> None:
    """Write ``lightning.json``, which lists all other files of ``folder``.

    Args:
        folder: The checkpoint.
        step: Its update step.
        run_id: The run that wrote it.
        checksums: The checksum of each file. Default: none are recorded.
    """
    marker = Marker(step=step, run_id=run_id, files=file_sizes(folder), checksums=dict(checksums or {}))
    (folder / LIGHTNING_MARKER_NAME).write_text(marker_text(marker), encoding="utf-8")


def marker_text(marker: Marker) -> str:
    """Return the content of ``lightning.json`` that says ``marker``; with checksums it has one of its own."""
    content: dict[str, object] = {"files": marker.files, "format": _FORMAT}
    content |= {"run_id": marker.run_id, "step": marker.step}
    if marker.checksums:
        content[ALGORITHM] = marker.checksums
        content[f"{ALGORITHM}_of_this"] = checksum_of_text(json.dumps(content))
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
    checksums = content.get(ALGORITHM, {})
    if (
        not isinstance(step, int)
        or not isinstance(run_id, str | None)
        or not isinstance(files, dict)
        or not all(isinstance(size, int) for size in files.values())
        or not isinstance(checksums, dict)
        or not all(isinstance(digits, str) for digits in checksums.values())
    ):
        raise CheckpointError(f"`{path}` is damaged: an entry is not what hf_compat writes.")
    return Marker(step=step, run_id=run_id, files=files, checksums=checksums)


def incomplete_reason(path: str | os.PathLike[str], *, as_saved: bool = False) -> str | None:
    """Return why the checkpoint folder ``path`` cannot be resumed from, None if it can.

    ``trainer_state.json``, which transformers writes last, has to be readable, and weights must not be missing. States
    that are missing are not resumed, as with transformers. Files that are as large as ``lightning.json`` says are
    whole; of others, and without ``lightning.json``, the headers have to be those of whole files.

    Args:
        path: The folder.
        as_saved: Whether nothing that was saved may be missing.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            return "the folder does not exist."
        marker = read_marker(folder)
        if marker is None or TRAINER_STATE_NAME in marker.files:
            read_json_object(folder / TRAINER_STATE_NAME)
        if marker is None:
            return next(_damage_of_unmarked(folder), None)
        changes = differences(folder, marker) if as_saved else iter(())
        return next(chain(_damage_since(folder, marker), changes), None)
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
        return next(damage(folder), None) if any(folder.iterdir()) else "the folder is empty."
    except OSError as error:
        return str(error)


def is_complete(path: str | os.PathLike[str]) -> bool:
    """Return whether the checkpoint folder ``path`` can be resumed from."""
    return incomplete_reason(path) is None


def _damage_of_unmarked(folder: Path) -> Iterator[str]:
    if not has_weights(folder):
        yield f"it contains no weights: neither {', '.join(WEIGHT_NAMES)} nor folders of adapters."
    yield from damage(folder)


def _damage_since(folder: Path, marker: Marker) -> Iterator[str]:
    """Yield what makes ``folder`` unusable although it was complete when ``marker`` was written."""
    intact = set()
    for name, size in marker.files.items():
        path = folder / name
        if _is_outside(folder, name):
            yield _distrust(name)
        elif not path.is_file():
            if _is_binary(path) and path.parent != folder and path.parent.is_dir():  # one of several shards
                yield f"`{name}` is missing."
        elif path.stat().st_size == size:
            intact.add(path)
        elif _is_binary(path) and not (path.suffix in _SELF_CONTAINED_SUFFIXES and is_whole(path)):
            yield _wrong_size(path, name, size)
    yield from damage(folder, intact=intact)
    lost = [name for name in marker.files if is_weight_file(name) and not (folder / name).is_file()]
    if lost and not has_weights(folder):
        yield f"`{lost[0]}` is missing."


def differences(folder: Path, marker: Marker) -> Iterator[str]:
    """Yield each difference between ``folder`` and its ``marker``: a missing file, or a binary one of another size."""
    for name, size in marker.files.items():
        path = folder / name
        if _is_outside(folder, name):
            yield _distrust(name)
        elif not path.is_file():
            yield f"`{name}` is missing."
        elif _is_binary(path) and path.stat().st_size != size:
            yield _wrong_size(path, name, size)


def _is_outside(folder: Path, name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not parts or ".." in parts or folder / name == Path(name)


def _distrust(name: str) -> str:
    return f"`{LIGHTNING_MARKER_NAME}` lists `{name}`, outside its folder: do not trust this checkpoint."


def _is_binary(path: Path) -> bool:
    return path.suffix in _BINARY_SUFFIXES or path.name == SHARDED_METADATA_NAME


def _wrong_size(path: Path, name: str, size: int) -> str:
    return f"`{name}` has {path.stat().st_size} bytes, expected {size}."
