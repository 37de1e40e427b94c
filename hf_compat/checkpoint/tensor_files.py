"""Safetensors files written one tensor at a time, so that the model may be larger than the memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_compat.errors import CheckpointError

__all__ = ["Entry", "write_tensors"]

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
