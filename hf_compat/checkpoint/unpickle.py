"""Reading files of torch's without running code that they may hold."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

import numpy as np
import torch

from hf_compat.errors import CheckpointError

__all__ = ["is_trusted", "load_trusted"]


@cache
def _allowed() -> tuple[Any, ...]:
    """Return what may be rebuilt besides tensors: numpy's arrays and scalars of numbers, as in random states."""
    core: Any = getattr(np, "_core", None) or np.core
    multiarray = core.multiarray
    numbers = ("bool", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
    # numpy 2 renamed its package; files of either numpy are read with either.
    renamed = [
        (getattr(multiarray, name), f"numpy.{package}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for package in ("core", "_core")
    ]
    return (*renamed, np.ndarray, np.dtype, *(type(np.dtype(number)) for number in numbers))


def load_trusted(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = "cpu",
    *,
    mmap: bool = False,
    allowed: Sequence[Any] = (),
) -> Any:
    """Return the tensors, numbers, strings and containers of them that a file of ``torch.save`` holds.

    Args:
        path: ``optimizer.pt``, ``scheduler.pt``, ``scaler.pt``, ``rng_state.pth``, ``pytorch_model.bin``, ...
        map_location: The device for the tensors.
        mmap: Whether to read of a tensor only what is used.
        allowed: Further classes that may be rebuilt; of those whose making runs no code alone.

    Raises:
        CheckpointError: If the file cannot be read or holds anything else, such as code to run; nothing of it ran.
    """
    try:
        with torch.serialization.safe_globals([*_allowed(), *allowed]):
            return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        cause = str(error).partition("WeightsUnpickler error: ")[2].partition("\n")[0] or str(error).partition("\n")[0]
        raise CheckpointError(
            f"`{path}` is refused: it holds more than tensors and plain values, or is damaged ({cause}). Nothing of it "
            "was run."
        ) from error
    except Exception as error:  # a damaged file makes torch raise whatever its parser stumbled over
        raise CheckpointError(f"`{path}` cannot be read: {error or type(error).__name__}") from error


def is_trusted(value: Any) -> bool:
    """Return whether ``load_trusted`` would read a file that ``torch.save`` wrote of ``value``."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        load_trusted(file)
    except Exception:  # what cannot be pickled fails in ways of its own
        return False
    return True
