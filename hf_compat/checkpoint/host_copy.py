"""Copying the content of a checkpoint to host memory, so that training may go on while it is written."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.memory import mapped

__all__ = ["HostBuffers", "clones_on_host", "to_host"]

_MAPPED_FROM = 1 << 16
"""Bytes, from which on memory is mapped, so that it goes back to the system at the end of a run."""


class HostBuffers:
    """The memory of a snapshot, kept for the next one: copying into new memory takes more than twice as long.

    It belongs to this process: unpickled, there is none.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, bool], list[torch.UntypedStorage]] = {}
        self._taken: list[tuple[tuple[int, bool], torch.UntypedStorage]] = []

    def __reduce__(self) -> tuple[type[HostBuffers], tuple[()]]:
        return type(self), ()

    def take(self, size: int, *, pinned: bool = False) -> torch.UntypedStorage:
        """Return ``size`` bytes of host memory, with any content.

        Args:
            size: In bytes.
            pinned: Whether a GPU is to write into it directly.
        """
        key = (size, pinned)
        free = self._free.get(key)
        storage = free.pop() if free else _new_memory(size, pinned)
        self._taken.append((key, storage))
        return storage

    def give_back(self) -> None:
        """Keep the memory that was taken, and nothing else, for the next snapshot: this one is used no more."""
        self._free.clear()
        for key, storage in self._taken:
            self._free.setdefault(key, []).append(storage)
        self._taken.clear()

    def clear(self) -> None:
        """Keep nothing; pinned memory goes back to the system, where this release of torch can return it."""
        is_pinned = any(pinned for _, pinned in self._free)
        self._free.clear()
        self._taken.clear()
        if is_pinned and hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()


def _new_memory(size: int, pinned: bool) -> torch.UntypedStorage:
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).untyped_storage()
    if size < _MAPPED_FROM:
        return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
    return torch.frombuffer(mapped(size), dtype=torch.uint8).untyped_storage()


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for copies from ``device``: torch has 32, which later ones share with other uses."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def to_host(value: Any, *, private: Iterable[Tensor] = (), buffers: HostBuffers | None = None) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it but the memory of ``private``.

    Tensors that share memory share it in the copy too, so that the files written of either are the same.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
        private: Tensors in host memory that nothing else uses.
        buffers: Where the memory of the copy comes from. Default: it is new.
    """
    copier = _Copier(private, buffers or HostBuffers())
    copied = copier.copied(value)
    copier.finish()
    return copied


def clones_on_host(state: Mapping[str, Any], *, buffers: HostBuffers) -> dict[str, Any]:
    """Return a copy of ``state`` in host memory, in which no tensor shares memory: each may be part of a larger one.

    Args:
        state: A state dict.
        buffers: Where the memory of the copy comes from.
    """
    copier = _Copier((), buffers)
    copied = {
        name: copier.cloned(value) if isinstance(value, Tensor) else copier.copied(value)
        for name, value in state.items()
    }
    copier.finish()
    return copied


class _Copier:
    """Copies each object once, however often it is met; GPUs copy on streams of their own until ``finish``."""

    def __init__(self, private: Iterable[Tensor], buffers: HostBuffers) -> None:
        self._memory = buffers
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copies: dict[int, tuple[object, Any]] = {}  # with the original, whose id must not be reused meanwhile
        storages = (tensor.untyped_storage() for tensor in private)
        self._storages: dict[int, torch.UntypedStorage] = {storage._cdata: storage for storage in storages}

    def copied(self, value: Any) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, self._copy(value))
        return self._copies[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            twin: Any = self._copied_tensor(value)
            if type(value) is nn.Parameter:
                return nn.Parameter(twin, value.requires_grad)
            if type(value) is Tensor:  # `torch.save` writes attributes too
                vars(twin).update(self.copied(vars(value)))
                twin.requires_grad_(value.requires_grad)
            return twin
        if isinstance(value, dict):
            twin = copy.copy(value)  # keeps the type of dict, and a state dict's `_metadata`
            for key, item in value.items():
                twin[key] = self.copied(item)
            return twin
        if type(value) in (list, tuple):
            return type(value)(self.copied(item) for item in value)
        return copy.deepcopy(value)

    def cloned(self, tensor: Tensor) -> Tensor:
        """Return a copy of ``tensor`` in memory of its own."""
        tensor = tensor.detach()
        if not _is_plain(tensor):
            return tensor.to("cpu", copy=True)
        buffer = self._memory.take(tensor.numel() * tensor.element_size(), pinned=tensor.is_cuda)
        strides = torch.empty_like(tensor, device="meta").stride()
        twin = torch.empty(0, dtype=tensor.dtype).set_(buffer, 0, tensor.size(), strides)
        self._fill(twin, tensor)
        return twin

    def finish(self) -> None:
        """Return when everything is copied: what follows may change the tensors, on the device or on the host."""
        for stream in self._streams.values():
            stream.synchronize()

    def _fill(self, target: Tensor, source: Tensor) -> None:
        if not source.is_cuda:
            target.copy_(source)
            return
        stream = self._streams.get(source.device)
        if stream is None:
            stream = self._streams[source.device] = _copy_stream(source.device)
            stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def _copied_tensor(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if not _is_plain(tensor):
            return self._copied_part(tensor) if hasattr(tensor, "to_local") else tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        key = storage._cdata  # by which `torch.save` tells storages apart; empty ones have no address
        if key not in self._storages:
            self._storages[key] = self._memory.take(storage.nbytes(), pinned=tensor.is_cuda)
            self._fill(_bytes_of(self._storages[key]), _bytes_of(storage))
        twin = torch.empty(0, dtype=tensor.dtype)
        return twin.set_(self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _copied_part(self, tensor: Any) -> Tensor:
        """Return a copy of a DTensor, this rank's part of it in host memory."""
        with torch.no_grad():  # `to_local` then returns the part itself, not a view of it
            twin: Any = torch.empty_like(tensor, device="cpu")
            twin.to_local().set_(self.cloned(tensor.to_local()))
        return twin  # type: ignore[no-any-return]


def _is_plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is a view of its storage, and nothing else."""
    is_strided = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    return is_strided and not tensor.is_conj() and not tensor.is_neg()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
