"""Consolidates a checkpoint's sharded weights into files for ``from_pretrained``."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import distributed_files, names, publish
from hf_compat.checkpoint.completeness import weight_files
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.publish import as_write_error
from hf_compat.errors import CheckpointError, CheckpointWriteError
from hf_compat.tools.model_classes import configured, model_class, named_classes, without_weights
from hf_compat.tools.safetensors_files import DEFAULT_LIMIT, Entry, write_model

_STATES = (names.OPTIMIZER_NAME, names.SCHEDULER_NAME, names.SCALER_NAME, names.TRAINER_STATE_NAME)
_TRAINING_FILES = (*_STATES, names.LIGHTNING_STATE_NAME, names.LIGHTNING_MARKER_NAME, names.FULL_OPTIMIZER_NAME)


def has_full_weights(folder: str | os.PathLike[str]) -> bool:
    """Return whether ``folder`` has full weights, which ``from_pretrained`` can read."""
    return Path(folder).is_dir() and bool(weight_files(Path(folder)))


def consolidate(
    folder: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, limit: int = DEFAULT_LIMIT
) -> list[Path]:
    """Consolidate a checkpoint's sharded weights into full weights, without a process group or a GPU.

    One tensor is in memory at a time, with the shard being read: at most twice the size of the largest tensor. Files
    get their final names after all of them are on the disk.

    Args:
        folder: A checkpoint with sharded weights, which are kept.
        output: A new folder for the weights, and for the other files of ``save_model``. Default: ``folder``.
        limit: Maximum bytes of tensors per file; larger models are written to several files with an index.

    Returns:
        The weight files, then the index if there is one.

    Raises:
        CheckpointError: If there are no sharded weights, they cannot be read, or files would be overwritten.
        CheckpointWriteError: If the files cannot be written.
    """
    source = Path(folder)
    sharded = _sharded_weights(source)
    target = source if output is None else Path(output)
    if output is None and has_full_weights(source):
        raise CheckpointError(f"`{source}` already has full weights. Remove them first, or pass `--output`.")
    if output is not None and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"`{target}` already exists and is not empty. Choose a new folder.")
    shards = _Shards(sharded)
    entries = _without_aliases(shards, source)

    def write(staged: Path) -> list[Path]:
        return write_model(staged, entries, shards.read, limit=limit)

    try:
        return _write_in_place(write, source) if output is None else _write_new_folder(write, source, target)
    except CheckpointWriteError:
        raise
    except OSError as error:
        raise as_write_error(error, target, advice="Nothing was written.") from error


def _sharded_weights(folder: Path) -> Path:
    """Return the folder with the shards in the checkpoint ``folder``; the error says what else to use."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"`{folder}` {what}; pass a checkpoint with sharded weights.")
    sharded = distributed_files.sharded_weights(folder)
    if sharded is not None:
        return sharded
    checkpoints = list_checkpoints(folder)
    if has_full_weights(folder):
        advice = "its weights are already full"
    elif (folder / "zero_to_fp32.py").is_file() or any(folder.glob("global_step*/")):
        advice = f"DeepSpeed wrote it: run `python {folder / 'zero_to_fp32.py'} {folder} OUTPUT`"
    elif checkpoints:
        advice = f"pass one of the checkpoints in it, such as `{checkpoints[-1].path}`"
    else:
        advice = "pass a checkpoint that FSDP saved with `state_dict_type='SHARDED_STATE_DICT'`"
    raise CheckpointError(f"`{folder}` has no sharded weights, `{names.SHARDED_WEIGHTS_NAME}`: {advice}.")


class _Shards:
    """The tensors in a folder of sharded weights, read one at a time.

    Attributes:
        entries: Their names, dtypes and shapes, in the model's order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata: Metadata = distributed_files.read_metadata(folder)
        self.entries: list[Entry] = []
        for path, kept in distributed_files.contents(self._metadata).items():
            if not (len(path) == 2 and path[0] == "model" and isinstance(kept, TensorStorageMetadata)):
                raise CheckpointError(
                    f"`{folder}` contains `{'.'.join(map(str, path))}`, which is not a tensor of the model: "
                    f"`{names.SAFE_WEIGHTS_NAME}` cannot store it."
                )
            self.entries.append(Entry(path[1], kept.properties.dtype, tuple(kept.size)))

    def read(self, entry: Entry) -> Tensor:
        """Return the full tensor, consolidated from its shards."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        distributed_files.load({"model": {entry.name: tensor}}, self._folder, self._metadata)
        return tensor


def _without_aliases(shards: _Shards, folder: Path) -> list[Entry]:
    """Return the entries without those that the model ties to an earlier one and whose values are equal to it."""
    by_name = {entry.name: entry for entry in shards.entries}
    kept = []
    first = _tied_names(folder)
    for entry in shards.entries:
        other = by_name.get(first.get(entry.name, entry.name), entry)
        if other is entry or not torch.equal(shards.read(entry), shards.read(other)):
            kept.append(entry)
    return kept


def _tied_names(folder: Path) -> dict[str, str]:
    """Return name → first name of each tied parameter in transformers' model of ``folder``.

    It is empty without transformers, or for a model class outside of it: every tensor is written then.
    """
    config = folder / "config.json"
    if not config.is_file() or importlib.util.find_spec("transformers") is None:
        return {}
    content = read_json_object(config)
    kind = next(map(model_class, named_classes(content)[:1]), None)
    if kind is None:
        return {}
    model = without_weights(kind, configured(kind.config_class, content))
    first: dict[int, str] = {}
    state: Mapping[str, Any] = model.state_dict(keep_vars=True)
    tied = {name: first.setdefault(id(value), name) for name, value in state.items()}
    return {name: other for name, other in tied.items() if name != other}


def _write_in_place(write: Callable[[Path], list[Path]], folder: Path) -> list[Path]:
    publish.clean_orphans(folder)
    staged = publish.begin(folder / names.SAFE_WEIGHTS_NAME)
    try:
        written = write(staged)
        for path in written:
            if (folder / path.name).exists():
                raise CheckpointError(f"`{folder / path.name}` already exists. Remove it first, or pass `--output`.")
        # The index comes last: without it the other files are not read.
        return [path.rename(folder / path.name) for path in written]
    finally:
        publish.abandon(staged)


def _write_new_folder(write: Callable[[Path], list[Path]], source: Path, target: Path) -> list[Path]:
    with publish.creating_folder(target, step=None) as staged:
        written = write(staged)
        for path in _model_files(source):
            shutil.copy2(path, staged)
    return [target / path.name for path in written]


def _model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint that belong to the model, not to the training state."""
    for path in folder.iterdir():
        is_random_state = path.name.startswith("rng_state")
        if (
            path.is_file()
            and path.name not in _TRAINING_FILES
            and not is_random_state
            and not path.name.startswith(".")
        ):
            yield path
