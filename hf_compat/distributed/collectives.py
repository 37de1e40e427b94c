"""Collective operations: barrier, gather, pad, reduce, broadcast. With a world size of 1 they do nothing.

Values, shapes and errors are those of accelerate ``utils/operations.py``. Every rank must make the same calls in the
same order. Each begins with a vote where the ranks may have to give up together; see
:mod:`hf_compat.distributed.oom_consensus`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from hf_compat.distributed.accelerators import accelerator_module
from hf_compat.distributed.oom_consensus import gloo_group, vote
from hf_compat.errors import DataError
from hf_compat.nested import leaves, map_nested

Nested = TypeVar("Nested")
"""A tensor, or lists, tuples and dicts of them."""
Item = TypeVar("Item")

_CPU_BACKENDS = {"gloo", "mpi", "ucc"}
"""Backends that exchange tensors on the CPU."""


def _in_use() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the world size, of all processes or of ``group``; 1 without a process group."""
    return distributed.get_world_size(group) if _in_use() else 1


def get_rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    return distributed.get_rank() if _in_use() else 0


def _vote(group: ProcessGroup | None) -> None:
    """Vote before an operation of all ranks; one of a group may be a background thread's."""
    if group is None:
        vote()


def map_tensors(change: Callable[[Tensor], Any], data: object) -> Any:
    """Return ``data`` with every tensor in it, at any depth, replaced by ``change(tensor)``.

    Raises:
        TypeError: If it contains anything but tensors, lists, tuples and dicts.
    """

    def changed(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return change(leaf)
        raise TypeError(
            f"Collective operations do not support {type(leaf).__name__}: pass tensors in lists, tuples or dicts."
        )

    return map_nested(changed, data)


def has_only_tensors(data: object) -> bool:
    """Return whether ``data`` contains only tensors, in lists, tuples and dicts."""
    return isinstance(data, Tensor) or all(isinstance(leaf, Tensor) for leaf in leaves(data))


def communication_device() -> torch.device:
    """Return the device of tensors that ranks can exchange: the CPU if a backend connects it, else the accelerator."""
    if get_world_size() == 1 or _backends() & _CPU_BACKENDS:
        return torch.device("cpu")
    return _current_accelerator()


def _backends() -> set[str]:
    """Return the backends of the process group, which may be written ``cuda:nccl,cpu:gloo``."""
    return {part.rpartition(":")[2] for part in distributed.get_backend().split(",")}


def _current_accelerator() -> torch.device:
    """Return the current device of this process."""
    kind = torch.accelerator.current_accelerator()
    assert kind is not None, "the process group connects accelerators"
    return torch.device(kind.type, accelerator_module(kind).current_device())


def barrier() -> None:
    """Wait until all ranks have reached this call."""
    if get_world_size() > 1:
        on_cpus = _backends() <= _CPU_BACKENDS
        vote()
        distributed.barrier(device_ids=None if on_cpus else [_current_accelerator().index])


def background_group(timeout: timedelta) -> ProcessGroup | None:
    """Return a second process group of all ranks, for a thread while the default one trains; every rank calls it.

    It is made once, over gloo, and ends with the default group.

    Args:
        timeout: The timeout of its operations.

    Returns:
        The group; None with a world size of 1.
    """
    if get_world_size() == 1:
        return None
    vote()
    return gloo_group("background", timeout)


def gather(tensors: Nested, group: ProcessGroup | None = None) -> Nested:
    """Return the tensors of all ranks, or of ``group``, concatenated along the first axis by rank.

    A 0-dimensional tensor counts as one of shape ``(1,)``. Shapes must be equal on all ranks.
    """
    if get_world_size(group) == 1:
        return tensors
    gathered: Nested = map_tensors(lambda tensor: _gather_one(tensor, group), tensors)
    return gathered


def _gather_one(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    mine = (tensor.clone()[None] if tensor.ndim == 0 else tensor).contiguous()
    parts = [torch.empty_like(mine) for _ in range(get_world_size(group))]
    _vote(group)
    distributed.all_gather(parts, mine, group=group)
    return torch.cat(parts)


def gather_objects(items: list[Item], group: ProcessGroup | None = None) -> list[Item]:
    """Return the lists of all ranks, or of ``group``, concatenated; with a world size of 1, ``items`` itself."""
    if get_world_size(group) == 1:
        return items
    parts: list[Any] = [None] * get_world_size(group)
    _vote(group)
    distributed.all_gather_object(parts, items, group=group)
    return [item for part in parts for item in part]


def gather_batches(batch: Mapping[str, Any] | None, group: ProcessGroup) -> list[dict[str, Any]]:
    """Return the batches of all ranks of ``group``, by rank; empty if a rank has none.

    Args:
        batch: Tensors of any shape, and other values that can be pickled; None if this rank has no batch.
        group: The process group.

    Raises:
        DataError: On every rank, if their batches do not have the same names.
    """
    described = None if batch is None else {name: _description(value) for name, value in batch.items()}
    descriptions: list[Any] = gather_objects([described], group)
    if batch is None or None in descriptions:
        return []
    if any(each.keys() != batch.keys() for each in descriptions):
        names = "; ".join(", ".join(sorted(each)) for each in descriptions)
        raise DataError(f"`train_dataset`: the ranks' batches have different names: {names}. Give all the same.")
    gathered: list[dict[str, Any]] = [dict(each) for each in descriptions]
    for name in sorted(batch):  # in the same order on all ranks
        shapes = [each[name] for each in descriptions]
        if isinstance(batch[name], Tensor):
            for each, tensor in zip(gathered, _gather_ragged(batch[name], shapes, group), strict=True):
                each[name] = tensor
    return gathered


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape of a tensor that another rank has."""

    sizes: tuple[int, ...]


def _description(value: object) -> object:
    return _Shape(tuple(value.shape)) if isinstance(value, Tensor) else value


def _gather_ragged(tensor: Tensor, shapes: list[_Shape], group: ProcessGroup) -> list[Tensor]:
    """Return the tensors of all ranks of ``group``, which have ``shapes``; flat and padded while they are exchanged."""
    counts = [math.prod(shape.sizes) for shape in shapes]
    flat = tensor.new_zeros(max(counts))
    flat[: tensor.numel()] = tensor.reshape(-1)
    parts = _gather_one(flat, group).view(len(shapes), -1)
    return [part[:count].view(shape.sizes) for part, count, shape in zip(parts, counts, shapes, strict=True)]


def mean_over_ranks(value: Tensor, weight: Tensor, group: ProcessGroup) -> Tensor:
    """Return the weighted mean of the ranks' values, ``()``, whose gradient flows back to the values of all ranks.

    A rank of weight 0 is left out, whatever its value; if all are, the mean is 0.

    Args:
        value: The value of this rank, ``()``.
        weight: Its weight, 0 or more, ``()``.
        group: The ranks.
    """
    values = _GatherValues.apply(value, group)  # type: ignore[no-untyped-call]
    weights = gather(weight, group)
    counted = torch.where(weights > 0, values, torch.zeros_like(values))
    return (counted * weights).sum() / weights.sum().clamp(min=1)


class _GatherValues(torch.autograd.Function):
    """The values of all ranks, ``(ranks,)``, from this rank's, ``()``; its gradient is the sum over the ranks.

    torch's own does the same, but with gloo only in a group of all ranks.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return gather(value, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mine,) = gradients
        of_ranks = gather(mine[None], ctx.group)  # the gradient of each rank's result for all values
        return of_ranks[:, distributed.get_rank(ctx.group)].contiguous().sum(), None


def pad_across_processes(
    tensors: Nested, dim: int = 0, pad_index: int = 0, pad_first: bool = False, group: ProcessGroup | None = None
) -> Nested:
    """Return ``tensors`` padded with ``pad_index`` along ``dim`` to the largest size over all ranks.

    Args:
        tensors: Tensors at any depth; those without an axis ``dim`` are not padded.
        dim: The axis to pad.
        pad_index: The padding value.
        pad_first: Pad before the values instead of after them.
        group: The process group. Default: all processes.
    """

    def pad(tensor: Tensor) -> Tensor:
        if not -tensor.ndim <= dim < tensor.ndim or tensor.is_nested:
            return tensor
        axis = dim % tensor.ndim
        length = tensor.shape[axis]
        longest = int(_gather_one(torch.tensor([length], device=tensor.device), group).max())
        if longest == length:
            return tensor
        shape = list(tensor.shape)
        shape[axis] = longest
        padded = tensor.new_zeros(shape) + pad_index
        padded.narrow(axis, longest - length if pad_first else 0, length).copy_(tensor)
        return padded

    padded: Nested = map_tensors(pad if get_world_size(group) > 1 else lambda tensor: tensor, tensors)
    return padded


def reduce(tensors: Nested, reduction: str = "mean", group: ProcessGroup | None = None) -> Nested:
    """Return the element-wise ``"sum"``, ``"mean"`` or ``"max"`` over all ranks, or over ``group``.

    ``"none"`` sums, as accelerate.
    """

    def combine(tensor: Tensor) -> Tensor:
        result = tensor.clone()
        if get_world_size(group) > 1:
            operation = distributed.ReduceOp.MAX if reduction == "max" else distributed.ReduceOp.SUM
            _vote(group)
            distributed.all_reduce(result, operation, group=group)
            if reduction == "mean":
                result /= get_world_size(group)
        return result

    reduced: Nested = map_tensors(combine, tensors)
    return reduced


def broadcast(tensors: Nested, from_process: int = 0) -> Nested:
    """Return the tensors of rank ``from_process``; on other ranks they overwrite tensors of equal shape and dtype."""

    def send(tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        vote()
        distributed.broadcast(tensor, src=from_process)
        return tensor

    sent: Nested = map_tensors(send, tensors) if get_world_size() > 1 else tensors
    return sent


def broadcast_object(value: object, from_process: int = 0) -> Any:
    """Return the ``value`` of rank ``from_process``, any object that can be pickled."""
    if get_world_size() == 1:
        return value
    holder = [value]
    vote()
    distributed.broadcast_object_list(holder, src=from_process)
    return holder[0]
