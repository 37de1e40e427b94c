"""Writes a model's safetensors files one tensor at a time, so that the model may be larger than the memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError

DEFAULT_LIMIT = 5_000_000_000
"""Maximum bytes of tensors in one file of a model."""

_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
}
"""torch's dtype → its name in the format."""
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor's entry in a file's header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The tensor's size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(path: Path, entries: Iterable[Entry], read: Callable[[Entry], Tensor]) -> None:
    """Write the safetensors file ``path``, flushed to the disk; one tensor at a time is in memory.

    Args:
        path: It does not exist yet.
        entries: The tensors of the file.
        read: Returns the tensor of an entry, on the CPU; called once each.

    Raises:
        CheckpointError: If the format has no such dtype.
    """
    # Widest dtypes first, so that each tensor is aligned to its item size.
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in ordered:
        if entry.dtype not in _CODES:
            raise CheckpointError(f"`{entry.name}` is of {entry.dtype}, which `{path.name}` cannot hold.")
        span = [offset, offset + entry.size]
        header[entry.name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": span}
        offset += entry.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for entry in ordered:
            file.write(read(entry).contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def write_model(folder: Path, entries: Sequence[Entry], read: Callable[[Entry], Tensor], *, limit: int) -> list[Path]:
    """Write a model's weights to ``folder``, in several files with an index if they are large; return the files.

    Args:
        folder: It exists, without weights.
        entries: The tensors of the model, in order.
        read: Returns the tensor of an entry, on the CPU; called once each.
        limit: Maximum bytes of tensors per file, unless one tensor is larger.

    Returns:
        The weight files, then the index if there is one.

    Raises:
        CheckpointError: If the format has no such dtype.
    """
    files = _split_into_files(entries, limit)
    for name, group in files.items():
        write_tensors(folder / name, group, read)
    paths = [folder / name for name in files]
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(entry.size for entry in entries)},
            "weight_map": {entry.name: name for name, group in files.items() for entry in group},
        }
        paths.append(folder / names.SAFE_WEIGHTS_INDEX_NAME)
        paths[-1].write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return paths


def _split_into_files(entries: Sequence[Entry], limit: int) -> dict[str, list[Entry]]:
    """Return file name → entries, with at most ``limit`` bytes or one tensor per file."""
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.size > limit:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.size
    if len(groups) == 1:
        return {names.SAFE_WEIGHTS_NAME: groups[0]}
    stem, _, suffix = names.SAFE_WEIGHTS_NAME.partition(".")
    return {f"{stem}-{number:05}-of-{len(groups):05}.{suffix}": group for number, group in enumerate(groups, 1)}
