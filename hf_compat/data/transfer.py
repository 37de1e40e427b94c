"""Moving batches to the device of a rank: to a GPU while it computes on the batches before."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from hf_compat.nested import MAPPINGS, SEQUENCES, leaves, rebuild

__all__ = ["move_batch", "move_to_device"]

_DataT = TypeVar("_DataT")


def move_to_device(data: _DataT, device: torch.device, *, non_blocking: bool = False) -> _DataT:
    """Return ``data`` on ``device``: what has a method ``to`` moves itself, however nested; containers are kept.

    Such objects are tensors, a tokenizer's ``BatchEncoding``, a ``PackedSequence``, the batch of a graph library. Their
    ``to`` is called on the device that they are on too.

    References:
        As accelerate ``utils/operations.py`` ``send_to_device``.
    """
    moved: Any = data
    if type(data) is dict:  # nearly every batch
        moved = {
            key: value
            if type(value) is Tensor and value.device == device
            else move_to_device(value, device, non_blocking=non_blocking)
            for key, value in moved.items()
        }
    elif hasattr(moved, "to"):
        try:
            moved = moved.to(device, non_blocking=non_blocking)
        except TypeError:  # one of somebody else's
            moved = moved.to(device)
    elif isinstance(data, SEQUENCES):
        moved = rebuild(data, [move_to_device(item, device, non_blocking=non_blocking) for item in data])
    elif isinstance(data, MAPPINGS):
        items = {key: move_to_device(value, device, non_blocking=non_blocking) for key, value in data.items()}
        moved = type(data)(items)  # type: ignore[call-arg]
    return moved  # type: ignore[no-any-return]


def move_batch(batch: _DataT, device: torch.device, *, non_blocking: bool = False) -> _DataT:
    """Return ``batch`` on ``device``, as :func:`move_to_device` does; to a GPU it is copied on a stream of its own.

    On the stream of the computation a copy would start when everything launched before it has ended. Unless the copy is
    asynchronous the host would wait for that too, and the GPU then for the host to launch the next step.

    Args:
        batch: Tensors, however nested. If some of them cannot be copied so, all are moved on the current stream: those
            that are on a GPU already, those of other layouts or of a subclass, and those in objects that move
            themselves.
        device: Where to.
        non_blocking: Do not wait for the copy of pinned memory either, which must then not be written to.
    """
    if device.type != "cuda" or not _is_plain_in_host_memory(batch):
        return move_to_device(batch, device, non_blocking=non_blocking)
    copies, computation = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        moved = move_to_device(batch, device, non_blocking=non_blocking)
    computation.wait_stream(copies)
    for leaf in leaves(moved):
        if isinstance(leaf, Tensor) and leaf.is_cuda:  # a BatchEncoding leaves lists of tensors where they are
            leaf.record_stream(computation)  # or a later copy might be given its memory while it is still read
    return moved


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of the copies to ``device``: one, since the memory of each stream is cached for itself."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _is_plain_in_host_memory(data: object) -> bool:
    """Return whether all that :func:`move_to_device` moves are ordinary tensors on the CPU, which can be found."""
    if isinstance(data, Tensor):
        return type(data) is Tensor and data.layout is torch.strided and data.device.type == "cpu"
    if hasattr(data, "to") and not (isinstance(data, MAPPINGS) and type(data).__module__.startswith("transformers.")):
        return False
    if isinstance(data, SEQUENCES):
        return all(map(_is_plain_in_host_memory, data))
    return not isinstance(data, MAPPINGS) or all(map(_is_plain_in_host_memory, data.values()))
