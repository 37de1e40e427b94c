"""Nested lists, tuples and mappings, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

Nested: TypeAlias = "Tensor | list[Any] | tuple[Any, ...] | Mapping[Any, Any]"
"""A tensor, or tensors nested in lists, tuples and mappings."""

# Built once, and with the usual type first: batches are checked at every step.
SEQUENCES = (list, tuple)
MAPPINGS = (dict, Mapping)
_ARRAYS = (Tensor, np.ndarray)

_SequenceT = TypeVar("_SequenceT", bound="list[Any] | tuple[Any, ...]")


def rebuild(like: _SequenceT, items: Iterable[Any]) -> _SequenceT:
    """Return ``items`` as a list, tuple or named tuple of the type of ``like``."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def map_nested(change: Callable[[Any], Any], data: object) -> Any:
    """Return ``data`` with ``change`` applied to every leaf; containers keep their types."""
    if isinstance(data, Tensor):  # nearly every leaf, which it takes longer to find to be no mapping
        return change(data)
    if isinstance(data, SEQUENCES):
        return rebuild(data, [map_nested(change, item) for item in data])
    if isinstance(data, MAPPINGS):
        return type(data)({key: map_nested(change, item) for key, item in data.items()})  # type: ignore[call-arg]
    return change(data)


def leaves(data: object) -> Iterator[Any]:
    """Yield every leaf of ``data``, in order."""
    if isinstance(data, MAPPINGS):
        data = data.values()
    elif not isinstance(data, SEQUENCES):
        yield data
        return
    for item in data:
        yield from leaves(item)


def find_batch_size(tensors: object) -> int | None:
    """Return the first dimension of the first tensor or array in ``tensors`` that has one, None if there is none."""
    if isinstance(tensors, _ARRAYS):
        return int(tensors.shape[0]) if tensors.ndim else None
    if isinstance(tensors, MAPPINGS):
        tensors = tensors.values()
    elif not isinstance(tensors, SEQUENCES):
        return None
    for item in tensors:
        if (size := find_batch_size(item)) is not None:
            return size
    return None
