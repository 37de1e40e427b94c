"""Copying what a checkpoint holds to host memory: at once, or while the next forward and backward pass run."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["HostBuffers", "LateCopies", "clones_on_host", "to_host"]

logger = logging.getLogger(__name__)


class HostBuffers:
    """The memory of a snapshot, kept for the next one: copying into new memory takes more than twice as long."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}
        self._taken: list[torch.UntypedStorage] = []

    def take(self, size: int) -> torch.UntypedStorage:
        """Return ``size`` bytes of host memory, with any content."""
        free = self._free.get(size)
        storage = free.pop() if free else torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
        self._taken.append(storage)
        return storage

    def give_back(self) -> None:
        """Keep what was taken, and nothing else, for the next snapshot: nobody uses this one any more."""
        self._free.clear()
        for storage in self._taken:
            self._free.setdefault(storage.nbytes(), []).append(storage)
        self._taken.clear()

    def clear(self) -> None:
        """Keep nothing."""
        self._free.clear()
        self._taken.clear()


class _Copy(NamedTuple):
    source: Tensor
    target: Tensor

    def make(self) -> None:
        self.target.copy_(self.source)

    def is_still_true(self) -> bool:
        """Return whether the source has not changed since; NaN is as it was."""
        one, other = self.source.cpu(), self.target
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


class LateCopies:
    """Copies tensors to host memory in a thread, while training goes on until the next update of the weights.

    Only the optimizer's step changes the tensors of a checkpoint, apart from a model's buffers, so the copies need not
    be made before that step. Whether that holds for this model, and for what is called between two updates, is tried:
    the first checkpoint of a run is copied at once, and compared with the weights before the next update; if they
    differ, all later ones are copied at once too. If a tensor counts a change in place while late copies are made
    nevertheless, they are made again before the next update.
    """

    def __init__(self) -> None:
        self._only_updates_change: bool | None = None
        self._is_allowed = False
        self._changing: set[int] = set()
        self._to_verify: list[_Copy] = []
        self._pending: list[_Copy] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._is_update_due = threading.Event()
        self._are_made = threading.Event()
        self._are_made.set()

    def __reduce__(self) -> tuple[type[LateCopies], tuple[()]]:
        """Return what makes new ones: what a thread copies belongs to this process."""
        return type(self), ()

    def begin(self, *, is_allowed: bool, changing: Iterable[Tensor] = ()) -> None:
        """Begin the copies of one checkpoint.

        Args:
            is_allowed: Whether nothing but an update may change the weights next.
            changing: Tensors that other code changes too, such as buffers.
        """
        self._to_verify.clear()
        self._forget_pending()
        self._is_allowed = is_allowed and self._only_updates_change is not False
        self._changing = {_memory_of(tensor) for tensor in changing if tensor.layout is torch.strided}

    def watch(self, tensor: Tensor) -> None:
        """Note how many changes in place ``tensor`` has counted, whose memory may be copied late."""
        if self._only_updates_change and self._may_wait(tensor):
            self._versions.append((tensor, tensor._version))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy ``source`` into ``target``, at once or late.

        Args:
            source: On any device.
            target: In host memory.
        """
        one, may_wait = _Copy(source, target), self._may_wait(source)
        if not (may_wait and self._only_updates_change):
            one.make()
        if may_wait:
            (self._pending if self._only_updates_change else self._to_verify).append(one)

    def _may_wait(self, tensor: Tensor) -> bool:
        is_known = tensor.device.type in ("cpu", "cuda") and not tensor.is_inference()
        return self._is_allowed and is_known and _memory_of(tensor) not in self._changing

    def start(self) -> None:
        """Let :meth:`make` begin; called by the thread that trains."""
        self._is_allowed = False
        self._is_update_due.clear()
        if self._pending:
            self._are_made.clear()
            for device in {one.source.device for one in self._pending if one.source.is_cuda}:
                if device not in self._streams:  # torch has 32 of them, which later ones share with other uses
                    self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._streams[device].wait_stream(torch.cuda.current_stream(device))

    def make(self) -> None:
        """Make the late copies; called by the thread that writes them."""
        try:
            self._make_all()
            if any(tensor._version != version for tensor, version in self._versions):
                self._only_updates_change = False
                logger.warning(
                    "Tensors were modified in place, and not by the optimizer, while `save_async` was copying a "
                    "checkpoint. The checkpoint is copied again before the next update; from now on checkpoints are "
                    "copied before training continues."
                )
                while not self._is_update_due.wait(1) and threading.main_thread().is_alive():
                    pass
                self._make_all()
        finally:
            self._forget_pending()
            self._are_made.set()

    def _make_all(self) -> None:
        for one in self._pending:
            stream = self._streams.get(one.source.device)
            with nullcontext() if stream is None else torch.cuda.stream(stream):  # beside what training queues
                one.make()

    def before_update(self) -> None:
        """Return when the late copies are made; called right before the weights change."""
        if self._to_verify:
            self._only_updates_change = all(one.is_still_true() for one in self._to_verify)
            if not self._only_updates_change:
                logger.info(
                    "Weights also change between optimizer updates, so checkpoints are copied before training "
                    "continues."
                )
            self._to_verify.clear()
        if not self._are_made.is_set():
            self.release()
            self._are_made.wait()

    def release(self) -> None:
        """Let late copies be made again if their tensors have changed: nothing changes them now."""
        self._is_update_due.set()

    def clear(self) -> None:
        """Forget the run, which has ended: all is copied."""
        self.begin(is_allowed=False)
        self._only_updates_change = None

    def _forget_pending(self) -> None:
        self._pending, self._versions = [], []


def _memory_of(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    memory: int = local.untyped_storage()._cdata
    return memory


def to_host(
    value: Any, *, private: Iterable[Tensor] = (), buffers: HostBuffers | None = None, late: LateCopies | None = None
) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it but the memory of ``private``.

    Tensors that share memory share it in the copy too, so that the files written of either are the same.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
        private: Tensors in host memory that nothing else uses.
        buffers: Where the memory of the copy comes from. Default: it is new.
        late: Copies what need not be copied at once. Default: everything is.
    """
    return _Copier(private, buffers or HostBuffers(), late or LateCopies()).copied(value)


def clones_on_host(state: Mapping[str, Any], *, buffers: HostBuffers, late: LateCopies) -> dict[str, Any]:
    """Return a copy of ``state`` in host memory, in which no tensor shares memory: each may be part of a larger one.

    Args:
        state: A state dict.
        buffers: Where the memory of the copy comes from.
        late: Copies what need not be copied at once.
    """
    copier = _Copier((), buffers, late)
    return {
        name: copier.cloned(value) if isinstance(value, Tensor) else copier.copied(value)
        for name, value in state.items()
    }


class _Copier:
    """Copies each object once, however often it is met."""

    def __init__(self, private: Iterable[Tensor], buffers: HostBuffers, late: LateCopies) -> None:
        self._memory = buffers
        self._late = late
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
        buffer = self._memory.take(tensor.numel() * tensor.element_size())
        strides = torch.empty_like(tensor, device="meta").stride()
        twin = torch.empty(0, dtype=tensor.dtype).set_(buffer, 0, tensor.size(), strides)
        self._late.copy(tensor, twin)
        self._late.watch(tensor)
        return twin

    def _copied_tensor(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if not _is_plain(tensor):
            return self._copied_part(tensor) if hasattr(tensor, "to_local") else tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        key = storage._cdata  # by which `torch.save` tells storages apart; empty ones have no address
        if key not in self._storages:
            buffer = self._memory.take(storage.nbytes())
            self._late.copy(_bytes_of(storage), _bytes_of(buffer))
            self._storages[key] = buffer
        self._late.watch(tensor)
        twin = torch.empty(0, dtype=tensor.dtype)
        return twin.set_(self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _copied_part(self, tensor: Any) -> Tensor:
        """Return a copy of a DTensor, this rank's part of it in host memory."""
        twin: Any = torch.empty_like(tensor, device="cpu")
        self._late.copy(tensor.to_local(), twin.to_local())
        self._late.watch(tensor)
        return twin  # type: ignore[no-any-return]


def _is_plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is a view of its storage, and nothing else."""
    is_strided = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    return is_strided and not tensor.is_conj() and not tensor.is_neg()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
