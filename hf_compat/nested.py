"""Lists, tuples and mappings in one another, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["find_batch_size", "map_nested", "rebuild"]


def rebuild(like: Any, items: Any) -> Any:
    """Return a list or tuple of the type of ``like``, a named tuple too, with other ``items``."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def map_nested(change: Callable[[Any], Any], data: Any) -> Any:
    """Return ``data`` with ``change`` applied to everything in it that is no container; containers keep their types."""
    if isinstance(data, list | tuple):
        return rebuild(data, [map_nested(change, item) for item in data])
    if isinstance(data, Mapping):
        return type(data)({key: map_nested(change, item) for key, item in data.items()})  # type: ignore[call-arg]
    return change(data)


def find_batch_size(tensors: Any) -> int | None:
    """Return the length of the first tensor or array with a first dimension in ``tensors``, None if there is none."""
    if isinstance(tensors, Tensor | np.ndarray):
        return int(tensors.shape[0]) if tensors.ndim else None
    if isinstance(tensors, Mapping):
        tensors = tensors.values()
    elif not isinstance(tensors, list | tuple):
        return None
    return next((size for size in map(find_batch_size, tensors) if size is not None), None)
