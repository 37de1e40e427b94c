"""The files of a checkpoint folder that hold the model, checks of its weights, and copies of these files."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from safetensors import SafetensorError, safe_open

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError

__all__ = [
    "WEIGHT_NAMES",
    "adapter_file",
    "adapter_folders",
    "copy_model_files",
    "damage",
    "has_weights",
    "is_weight_file",
    "is_whole",
    "model_files",
    "weight_files",
]

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
