"""Nested lists, tuples and mappings, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

__all__ = ["Nested", "find_batch_size", "map_nested", "rebuild"]

Nested: TypeAlias = "Tensor | list[Any] | tuple[Any, ...] | Mapping[Any, Any]"
"""A tensor, or tensors nested in lists, tuples and mappings."""

_SequenceT = TypeVar("_SequenceT", bound="list[Any] | tuple[Any, ...]")


def rebuild(like: _SequenceT, items: Iterable[Any]) -> _SequenceT:
    """Return ``items`` as a list, tuple or named tuple of the type of ``like``."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def map_nested(change: Callable[[Any], Any], data: object) -> Any:
    """Return ``data`` with ``change`` applied to every leaf; containers keep their types."""
    if isinstance(data, list | tuple):
        return rebuild(data, [map_nested(change, item) for item in data])
    if isinstance(data, Mapping):
        return type(data)({key: map_nested(change, item) for key, item in data.items()})  # type: ignore[call-arg]
    return change(data)


def find_batch_size(tensors: object) -> int | None:
    """Return the first dimension of the first tensor or array in ``tensors`` that has one, None if there is none."""
    if isinstance(tensors, Tensor | np.ndarray):
        return int(tensors.shape[0]) if tensors.ndim else None
    if isinstance(tensors, Mapping):
        tensors = tensors.values()
    elif not isinstance(tensors, list | tuple):
        return None
    return next((size for size in map(find_batch_size, tensors) if size is not None), None)
