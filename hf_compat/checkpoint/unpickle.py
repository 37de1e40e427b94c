"""Loading files of ``torch.save`` without running code that they may hold."""

from __future__ import annotations

import enum
import io
import os
import pickle
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

import numpy as np
import torch
from numpy._core import multiarray

from hf_compat.errors import CheckpointError


@cache
def _allowed() -> tuple[Any, ...]:
    """Return what may be unpickled besides tensors: numpy's arrays and scalars, as in random states, and enums."""
    numbers = ("bool", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
    # numpy 2 renamed its package; files of either numpy are read.
    renamed = [
        (getattr(multiarray, name), f"numpy.{package}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for package in ("core", "_core")
    ]
    return (
        *renamed,
        (enum_member, "builtins.getattr"),
        np.ndarray,
        np.dtype,
        *(type(np.dtype(number)) for number in numbers),
    )


def load_trusted(
    path: str | os.PathLike[str] | IO[bytes],
    *,
    mmap: bool = False,
    allowed: Sequence[Any] = (),
) -> Any:
    """Return the tensors, on the CPU, numbers, strings and containers of them in a file of ``torch.save``.

    Args:
        path: ``optimizer.pt``, ``scheduler.pt``, ``scaler.pt``, ``rng_state.pth``, ``pytorch_model.bin``, ...
        mmap: Whether to map the file into memory, so that only the tensors in use are read.
        allowed: Further classes that may be unpickled; only such as run no code when created.

    Raises:
        CheckpointError: If the file cannot be read, or contains anything else, such as code, which is not run.
    """
    try:
        with torch.serialization.safe_globals([*_allowed(), *allowed]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise CheckpointError.also(type(error))(
            f"`{path}` is refused: it contains more than tensors and plain values, or is damaged "
            f"({cause_of(error)}). No code in it was run."
        ) from error
    except Exception as error:  # a damaged file makes torch raise any kind of error
        raise CheckpointError.also(type(error))(f"`{path}` cannot be read: {error or type(error).__name__}") from error


def cause_of(error: BaseException) -> str:
    """Return what is wrong with a file, without torch's advice to trust it."""
    text = str(error)
    found = text.partition("WeightsUnpickler error: ")[2].strip() or text
    return found.partition("\n")[0] or type(error).__name__


class Unread:
    """Placeholder for an object whose class may not be unpickled."""

    arguments: tuple[object, ...] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take any arguments, and keep those by position, which are not used either but by who knows the class."""
        self.arguments = args

    def __setstate__(self, state: object) -> None:
        """Keep the object's attributes, which are not used either but by who knows the class."""
        self.state = state


def enum_member(kind: object, name: str) -> object:
    """Return the member ``name`` of an enum, which early releases of Python 3.11 pickle as an attribute of it.

    Raises:
        UnpicklingError: If ``kind`` is no enum: other attributes may be code.
    """
    if isinstance(kind, type) and issubclass(kind, Unread):
        return kind(name)
    if not isinstance(kind, enum.EnumMeta):
        raise pickle.UnpicklingError("builtins.getattr")
    return kind[name]


def load_known(path: str | os.PathLike[str], *, mmap: bool = False) -> tuple[Any, list[str]]:
    """Return the content of a file of ``torch.save``, with ``Unread`` for objects of other classes than tensors.

    Args:
        path: A file written by another library, with its users' objects in it.
        mmap: Whether to map the file into memory, so that only the tensors in use are read.

    Returns:
        The content, and the names of classes and functions that stand as ``Unread`` in it.

    Raises:
        CheckpointError: If the file cannot be read, or names functions of the operating system.
    """
    try:
        with torch.serialization.safe_globals(list(_allowed())):
            unknown = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception as error:  # a damaged file makes torch raise any kind of error
        raise CheckpointError.also(type(error))(f"`{path}` cannot be read: {error or type(error).__name__}") from error
    stand_ins = [(type(name, (Unread,), {}), name) for name in unknown]
    return load_trusted(path, mmap=mmap, allowed=stand_ins), unknown


def is_trusted(value: object) -> bool:
    """Return whether ``load_trusted`` can load what ``torch.save`` writes of ``value``."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        load_trusted(file)
    except Exception:  # objects that cannot be pickled raise any kind of error
        return False
    return True
