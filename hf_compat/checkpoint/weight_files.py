"""Which files of a checkpoint folder hold the model's weights, and whether they are damaged."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from safetensors import SafetensorError, safe_open

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError

__all__ = ["adapter_file", "adapter_folders", "damage", "weight_files"]

# In the order in which they are looked for, safetensors before pickles.
_FULL = (names.SAFE_WEIGHTS_NAME, names.WEIGHTS_NAME)
_INDEXES = (names.SAFE_WEIGHTS_INDEX_NAME, names.WEIGHTS_INDEX_NAME)
_ADAPTERS = (names.ADAPTER_SAFE_WEIGHTS_NAME, names.ADAPTER_WEIGHTS_NAME)


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


def damage(folder: Path, *, needs_weights: bool = True) -> Iterator[str]:
    """Yield why weights or states in ``folder`` cannot be read, judging by headers and sizes.

    A truncated safetensors file is noticed by its header, one of ``torch.save`` by the directory at its end.

    Args:
        folder: The checkpoint.
        needs_weights: Whether it is damaged if it has no weights under a name that a Trainer gives them.
    """
    try:
        weights = weight_files(folder)
    except CheckpointError as error:
        yield str(error)
        return
    sharded = folder / names.SHARDED_WEIGHTS_NAME / names.SHARDED_METADATA_NAME
    adapters = [found for found in map(adapter_file, (folder, *adapter_folders(folder))) if found is not None]
    if needs_weights and not weights and not adapters and not sharded.is_file():
        yield f"it contains no weights: neither {', '.join((*_FULL, *_INDEXES, *_ADAPTERS))} nor folders of adapters."
    states = [path for path in sorted(folder.glob("*.pt*")) if path.suffix in (".pt", ".pth") and path.is_file()]
    for path in (*weights, *adapters, *states):
        reason = _safetensors_damage(path) if path.suffix == ".safetensors" else _pickle_damage(path)
        if reason is not None:
            yield f"`{path.name}` is damaged: {reason}"


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
