"""Sharded state dicts, saved and loaded with torch.distributed.checkpoint, without trusting the files.

The package's metadata file, ``.metadata``, and all values other than tensors are pickles. Here they cannot run code:
the metadata are read by an unpickler with a list of allowed classes, values like other files of ``torch.save``.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from hf_compat.checkpoint import names
from hf_compat.checkpoint.background import CheckpointFile, Put
from hf_compat.checkpoint.publish import errno_of, is_write_failure
from hf_compat.checkpoint.unpickle import cause_of, enum_member, load_trusted
from hf_compat.errors import CheckpointError, CheckpointWriteError

_KNOWN = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
}
"""Module → the names in it that metadata consist of, besides torch's dtypes and paths."""


_OF_SEVERAL_NODES = (
    "If several nodes without a shared disk have written it, each has its own ranks' files, and the first one "
    f"`{names.SHARDED_METADATA_NAME}`: copy the files of all nodes into this folder, on every node."
)


def is_sharded(folder: Path) -> bool:
    """Return whether torch.distributed.checkpoint wrote ``folder``.

    Raises:
        CheckpointError: If the folder contains shards, but not the metadata file.
    """
    if (folder / names.SHARDED_METADATA_NAME).is_file():
        return True
    if any(folder.glob("*.distcp")):
        raise CheckpointError(f"`{names.SHARDED_METADATA_NAME}` is missing in `{folder}`. {_OF_SEVERAL_NODES}")
    return False


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()):
            return getattr(importlib.import_module(module), name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] == "pathlib" and name.endswith("Path") and "." not in name:
            return PurePath  # of the system that wrote the checkpoint
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        raise pickle.UnpicklingError(f"{module}.{name}")


def read_metadata(folder: str | os.PathLike[str]) -> Metadata:
    """Return the metadata of ``folder``, without running code that they may hold.

    Raises:
        CheckpointError: If they cannot be read, hold anything else, or name a file outside ``folder``.
    """
    path = Path(folder, names.SHARDED_METADATA_NAME)
    try:
        with path.open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        files = {info.relative_path for info in metadata.storage_data.values()}
    except pickle.UnpicklingError as error:
        raise CheckpointError.also(type(error))(
            f"`{path}` is refused: it contains more than a list of tensors, or is damaged ({cause_of(error)}). No "
            "code in it was run."
        ) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError.also(type(error))(f"`{path}` cannot be read: {error or type(error).__name__}") from error
    for name in files:
        if not isinstance(name, str) or PurePath(name).name != name or name == "..":
            raise CheckpointError(f"`{path}` points to `{name}`, outside its folder: do not trust this checkpoint.")
        if not Path(folder, name).is_file():
            raise CheckpointError(
                f"The file `{name}` in `{names.SHARDED_METADATA_NAME}` is missing in `{folder}`. {_OF_SEVERAL_NODES}"
            )
    return metadata  # type: ignore[no-any-return]


def contents(metadata: Metadata) -> dict[tuple[Any, ...], Any]:
    """Return each entry's metadata by its path in the nested state dict."""
    paths: Any = metadata.planner_data or {}
    return {paths.get(name, (name,)): entry for name, entry in metadata.state_dict_metadata.items()}


class _TrustedReader(FileSystemReader):
    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _TrustedPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: IO[bytes]) -> None:
        path: Any = self.mappings[read_item.dest_index.fqn]
        *parents, last = path
        holder: Any = functools.reduce(lambda held, key: held[key], parents, self.original_state_dict)
        holder[last] = load_trusted(value)


def load(state: dict[str, Any], folder: Path, metadata: Metadata | None = None) -> None:
    """Load ``state`` from ``folder``: tensors in place, of DTensors each rank its shards, other values as new objects.

    Args:
        state: A nested state dict, whose entries have to be in ``folder``; other entries in ``folder`` are ignored.
        folder: Written with any world size.
        metadata: The result of ``read_metadata``; read if None.

    Raises:
        CheckpointError: If it cannot be read, does not fit, or contains code.
    """
    reader = _TrustedReader(folder, read_metadata(folder) if metadata is None else metadata)
    with _naming(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load_distributed(state, storage_reader=reader, planner=_TrustedPlanner(), no_dist=True)


def read_full(folder: Path) -> dict[tuple[Any, ...], Any]:
    """Return each value in ``folder`` by its path in the nested state dict; of sharded tensors the full ones.

    Raises:
        CheckpointError: If it cannot be read, or contains code.
    """
    metadata = read_metadata(folder)
    flat = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in metadata.state_dict_metadata.items()
    }
    load(flat, folder, metadata)
    paths: Any = metadata.planner_data or {}
    return {paths.get(name, (name,)): value for name, value in flat.items()}


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except (CheckpointException, Exception) as error:
        raise CheckpointError.also(type(error))(
            f"`{folder}` cannot be loaded: {cause_of(_first_failure(error))}"
        ) from error


def _first_failure(error: BaseException) -> BaseException:
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def save(state: dict[str, Any], folder: Path, put: Put = CheckpointFile.write) -> None:
    """Save the nested state dict ``state`` into ``folder``; every rank has to call it, and saves its shards.

    Args:
        state: Tensors, DTensors and plain values in dicts and lists.
        folder: Created if it does not exist.
        put: Takes the files. Default: they are written at once.

    Raises:
        CheckpointWriteError: On every rank, if any could not write.
        CheckpointError: On every rank, if any could not save for another reason.
    """
    put(CheckpointFile(_save, state, folder, by_all_ranks=True))


def _save(state: dict[str, Any], folder: Path, *, group: ProcessGroup | None) -> None:
    try:
        save_distributed(state, storage_writer=FileSystemWriter(folder), process_group=group)
    except CheckpointException as error:
        failure = _first_failure(error)
        if not is_write_failure(failure):
            raise CheckpointError.also(type(error))(
                f"`{folder.name}` cannot be saved: {type(failure).__name__}: {failure}"
            ) from error
        raise CheckpointWriteError(
            f"`{folder.name}` cannot be written: {failure}",
            errno=errno_of(failure),
            filename=getattr(failure, "filename", None),
        ) from error


def load_model(model: nn.Module, folder: Path) -> tuple[list[str], list[str]]:
    """Load the sharded weights in ``folder`` into ``model``, sharded or not.

    Returns:
        Missing and unexpected names.
    """
    metadata = read_metadata(folder)
    written = {
        path[1]
        for path, entry in contents(metadata).items()
        if path[0] == "model" and len(path) == 2 and isinstance(entry, TensorStorageMetadata)
    }
    state = model.state_dict()
    found = {name: value for name, value in state.items() if name in written}
    load({"model": found}, folder, metadata)
    model.load_state_dict(found, strict=False)  # a wrapper's state dict is a copy
    return [name for name in state if name not in written], sorted(written - set(state))


def sharded_weights(folder: Path) -> Path | None:
    """Return the folder of sharded weights in the checkpoint ``folder``, None if there is none."""
    path = folder / names.SHARDED_WEIGHTS_NAME
    return path if is_sharded(path) else None


# Between sharded and full state dicts: gathering DTensors, and distributing full tensors.


def full_tensors(value: Any, *, keeps: bool) -> Any:
    """Return a copy of ``value`` with full tensors in host memory, which share nothing with it; every rank calls it.

    One object stays one object, so weights that share memory share it in the result.

    Args:
        value: Tensors and plain values in dicts, lists and tuples.
        keeps: Whether this rank gets the result; other ranks take part and get dicts without tensors.
    """
    return _Gathering(keeps).full_tensors(value)


class _Gathering:
    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._done: dict[int, tuple[Any, Any]] = {}  # with the original, whose id must not be reused meanwhile

    def full_tensors(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._done:
                self._done[id(value)] = (value, self._gather(value))
            return self._done[id(value)][1]
        if isinstance(value, Mapping):
            items = ((key, self.full_tensors(item)) for key, item in value.items())
            return {key: item for key, item in items if self._keeps or not isinstance(value[key], Tensor)}
        if type(value) in (list, tuple):
            return type(value)(map(self.full_tensors, value))
        return copy.deepcopy(value)

    def _gather(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, DTensor):
            return tensor.detach().to("cpu", copy=True) if self._keeps else None
        exchanged: Any = tensor.detach().to(tensor.device_mesh.device_type)  # it may be offloaded to the host
        gathered: Tensor = exchanged.full_tensor()
        return gathered.to("cpu", copy=True) if self._keeps else None  # a replicated one is gathered without a copy


def untied(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` with a tensor of its own for each name."""
    kept: set[int] = set()

    def own(value: Any) -> Any:
        is_again = isinstance(value, Tensor) and id(value) in kept
        kept.add(id(value))
        return value.clone() if is_again else value

    return {name: own(value) for name, value in state.items()}


def distribute_like(target: object, values: Tensor) -> Tensor:
    """Return the full tensor ``values``, equal on all ranks, placed as ``target`` is; without communication.

    Args:
        target: The tensor of a state dict that the values are for. Where it is a DTensor, values of another shape, such
            as an optimizer's means over rows, are replicated; scalars stay plain tensors.
        values: Mostly of ``target``'s shape.
    """
    if not isinstance(target, DTensor) or isinstance(values, DTensor) or values.ndim == 0:
        return values
    same = values.shape == target.shape
    placements = target.placements if same else [Replicate()] * target.device_mesh.ndim
    values = values.to(target.device_mesh.device_type)
    return distribute_tensor(values, target.device_mesh, placements, src_data_rank=None)


@contextmanager
def distributing_on_load(model: nn.Module) -> Iterator[None]:
    """Context in which ``model.load_state_dict`` accepts full tensors for parameters that are DTensors."""

    def place(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        targets = module.state_dict()
        state.update({name: distribute_like(targets.get(name), value) for name, value in state.items()})

    hook = model.register_load_state_dict_pre_hook(place)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hook.remove()
