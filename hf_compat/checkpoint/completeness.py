"""``lightning.json``, which lists the files of a checkpoint folder, and whether a folder can be resumed from.

A folder is complete because it was renamed into place. What is changed in it later, by a callback perhaps, is its
owner's business: a file that is gone is not resumed, as with transformers. What is cut short is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath

from safetensors import SafetensorError, safe_open

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.checkpoint.flushing import ALGORITHM, checksum_of_text
from hf_compat.checkpoint.names import (
    LIGHTNING_MARKER_NAME,
    SHARDED_METADATA_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from hf_compat.errors import CheckpointError

# The files of a checkpoint folder that hold the model, checks of its weights, and copies of these files.


# In the order in which they are looked for, safetensors before pickles.
_FULL = (names.SAFE_WEIGHTS_NAME, names.WEIGHTS_NAME)
_INDEXES = (names.SAFE_WEIGHTS_INDEX_NAME, names.WEIGHTS_INDEX_NAME)
_ADAPTERS = (names.ADAPTER_SAFE_WEIGHTS_NAME, names.ADAPTER_WEIGHTS_NAME)

WEIGHT_NAMES = (*_FULL, *_INDEXES, *_ADAPTERS)
"""The names of files with weights, or with an index of them, in one folder."""

_CONFIGURATIONS = ("config.json", "generation_config.json", "adapter_config.json")


def _first(folder: Path, candidates: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in candidates if (folder / name).is_file()), None)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the file or the shards with the full model's weights, in order; none if there are only adapters.

    A single file is preferred to an index, safetensors to a pickle.

    Raises:
        CheckpointError: If an index cannot be read, or lists a file outside ``folder``, or a missing one.
    """
    single = _first(folder, _FULL)
    if single is not None:
        return (single,)
    index = _first(folder, _INDEXES)
    return () if index is None else _shards(index)


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"`{index}` has no `weight_map` from names of weights to files: it is damaged.")
    shards = []
    for name in sorted(set(weight_map.values())):
        if not _is_plain_name(name):
            raise CheckpointError(f"`{index}` points to `{name}`, outside its folder: do not trust this checkpoint.")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"The shard `{name}` in `{index.name}` is missing in `{index.parent}`.")
        shards.append(index.parent / name)
    return tuple(shards)


def _is_plain_name(name: str) -> bool:
    """Whether ``name`` names a file of the very folder, on any system."""
    return name != ".." and PurePosixPath(name).name == name == PureWindowsPath(name).name and "\0" not in name


def adapter_file(folder: Path) -> Path | None:
    """Return the file with the weights of an adapter in ``folder``, None if there is none."""
    return _first(folder, _ADAPTERS)


def adapter_folders(folder: Path) -> tuple[Path, ...]:
    """Return the sub-folders that each hold one adapter, as peft writes all adapters but the default one."""
    return tuple(sorted(child for child in folder.iterdir() if child.is_dir() and adapter_file(child) is not None))


def is_weight_file(name: str) -> bool:
    """Return whether ``name``, a path inside a checkpoint, is that of weights or of an index of them."""
    path = PurePosixPath(name)
    is_sharded = path.parts == (names.SHARDED_WEIGHTS_NAME, names.SHARDED_METADATA_NAME)
    return is_sharded or name in (*_FULL, *_INDEXES) or path.name in _ADAPTERS


def has_weights(folder: Path) -> bool:
    """Return whether ``folder`` holds weights under names that transformers, peft or accelerate read.

    Raises:
        CheckpointError: As ``weight_files``.
    """
    sharded = folder / names.SHARDED_WEIGHTS_NAME / names.SHARDED_METADATA_NAME
    return bool(weight_files(folder) or _adapters(folder)) or sharded.is_file()


def _adapters(folder: Path) -> list[Path]:
    return [found for found in map(adapter_file, (folder, *adapter_folders(folder))) if found is not None]


def damage(folder: Path, *, intact: Collection[Path] = ()) -> Iterator[str]:
    """Yield why weights or states in ``folder`` cannot be read, judging by headers and sizes.

    A truncated safetensors file is noticed by its header, one of ``torch.save`` by the directory at its end.

    Args:
        folder: The checkpoint.
        intact: Files that are known to be whole.
    """
    try:
        weights = weight_files(folder)
    except CheckpointError as error:
        yield str(error)
        return
    states = [path for path in sorted(folder.glob("*.pt*")) if path.suffix in (".pt", ".pth") and path.is_file()]
    for path in (*weights, *_adapters(folder), *states):
        reason = None if path in intact else _damage_of(path)
        if reason is not None:
            yield f"`{path.name}` is damaged: {reason}"


def is_whole(path: Path) -> bool:
    """Return whether ``path``, a safetensors file or one of ``torch.save``, has both its beginning and its end."""
    return _safetensors_damage(path) is None if path.suffix == ".safetensors" else zipfile.is_zipfile(path)


def _damage_of(path: Path) -> str | None:
    return _safetensors_damage(path) if path.suffix == ".safetensors" else _pickle_damage(path)


def _safetensors_damage(path: Path) -> str | None:
    try:
        with safe_open(path, "np"):
            return None
    except (OSError, SafetensorError, ValueError) as error:
        return str(error)


def _pickle_damage(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return "it is empty."
    # Files of torch before 1.6 are not zip files, so they have no directory.
    if start == b"PK" and not zipfile.is_zipfile(path):
        return "it is truncated."
    return None


def model_files(checkpoint: Path) -> list[Path]:
    """Return the configurations and weights of a checkpoint, the shards that an index names included."""
    wanted = [*_CONFIGURATIONS, *WEIGHT_NAMES]
    for index in _INDEXES:
        if (checkpoint / index).is_file():
            shards = json.loads((checkpoint / index).read_text(encoding="utf-8"))["weight_map"].values()
            wanted += sorted(set(shards))
    return [checkpoint / name for name in wanted if (checkpoint / name).is_file()]


def copy_model_files(files: list[Path], folder: Path) -> None:
    """Copy ``files`` into ``folder``; a reader sees the old file of a name or the new one, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in files:
        partial = folder / f"_{source.name}.partial"  # no push takes names that begin so
        try:
            shutil.copyfile(source, partial)
            os.replace(partial, folder / source.name)
        finally:
            partial.unlink(missing_ok=True)


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
            if not (folder / TRAINER_STATE_NAME).is_file():
                return f"`{TRAINER_STATE_NAME}` is missing."
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
