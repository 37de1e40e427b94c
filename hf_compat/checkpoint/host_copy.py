"""Copying what a checkpoint holds to host memory: at once, or while the next forward and backward pass run."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["HostBuffers", "LateCopies", "to_host"]

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
    owner: Tensor
    """The tensor whose counter of changes in place, ``_version``, counts those of ``source``."""
    version: int

    def make(self) -> None:
        self.target.copy_(self.source)


class LateCopies:
    """Copies tensors in a thread while training goes on, until the next update of the weights.

    Only the optimizer's step changes the tensors of a checkpoint, apart from a model's buffers, so the copy need not be
    complete before that step. Whether that holds for this model, and for what is called between two updates, is
    tried: the first checkpoint of a run is copied at once, and compared with the weights before the next update; if
    they differ, all later ones are copied at once too. If a late copy's tensor counts a change in place nevertheless,
    it is copied again.
    """

    def __init__(self) -> None:
        self._holds: bool | None = None
        self._is_allowed = False
        self._changing: set[int] = set()
        self._made: list[_Copy] = []
        self._pending: list[_Copy] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[type[LateCopies], tuple[()]]:
        """Return what makes new ones: a thread, and what it copies, belong to this process."""
        return type(self), ()

    def begin(self, *, is_allowed: bool, changing: Iterable[Tensor]) -> None:
        """Begin the copies of one checkpoint.

        Args:
            is_allowed: Whether the next that may change the weights is an update.
            changing: Tensors that other code changes too, such as buffers.
        """
        self._made.clear()
        self._is_allowed = is_allowed
        self._changing = {tensor.untyped_storage()._cdata for tensor in changing}

    def copy(self, source: Tensor, target: Tensor, owner: Tensor) -> None:
        """Copy ``source`` into ``target``, at once or late.

        Args:
            source: On any device.
            target: In host memory.
            owner: The tensor that ``source`` is the memory of.
        """
        can_wait = (
            self._is_allowed
            and self._holds is not False
            and source.device.type in ("cpu", "cuda")
            and not owner.is_inference()
            and source.untyped_storage()._cdata not in self._changing
        )
        if not can_wait:
            target.copy_(source)
            return
        copying = _Copy(source, target, owner, owner._version)
        if self._holds:
            self._pending.append(copying)
        else:
            copying.make()
            self._made.append(copying)

    def start(self) -> bool:
        """Start the thread that makes the late copies; return whether there are any."""
        self._is_allowed = False
        if self._pending:
            streams: dict[torch.device, torch.cuda.Stream] = {}
            for device in {copying.source.device for copying in self._pending if copying.source.is_cuda}:
                streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                streams[device].wait_stream(torch.cuda.current_stream(device))
            self._thread = threading.Thread(target=self._make, args=(streams,), name="hf_compat-copy")
            self._thread.start()
        return self._thread is not None

    def _make(self, streams: dict[torch.device, torch.cuda.Stream]) -> None:
        """Make the late copies; those from a GPU in its stream, beside what training queues."""
        try:
            for copying in self._pending:
                stream = streams.get(copying.source.device)
                with nullcontext() if stream is None else torch.cuda.stream(stream):
                    copying.make()
        except BaseException as error:
            self._error = error

    def compare(self) -> None:
        """Compare what was copied at once with the tensors now, right before an update."""
        if self._made:
            self._holds = all(torch.equal(made.source.cpu(), made.target) for made in self._made)
            if not self._holds:
                logger.info("Weights change between updates too, so a checkpoint is copied before training continues.")
            self._made.clear()

    def finish(self) -> None:
        """Return when the late copies are made; copy again what has changed meanwhile."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        changed = [copying for copying in self._pending if copying.owner._version != copying.version]
        self._pending = []
        if changed:
            self._holds = False
            logger.warning(
                "While `save_async` copied a checkpoint, %s of its tensors changed in place, but not by an update: it "
                "holds them as they are before the next update. From now on a checkpoint is copied before training "
                "continues.",
                len(changed),
            )
            for copying in changed:
                copying.make()

    def check(self) -> None:
        """Raise the error of the late copies, once.

        Raises:
            Exception: If they failed.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def clear(self) -> None:
        """Forget what was tried; the run has ended."""
        self.finish()
        self._made.clear()
        self._changing.clear()
        self._holds = None


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

    def _copied_tensor(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
        if not is_plain or tensor.is_conj() or tensor.is_neg():
            return self._copied_part(tensor) if hasattr(tensor, "to_local") else tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        key = storage._cdata  # by which `torch.save` tells storages apart; empty ones have no address
        if key not in self._storages:
            buffer = self._memory.take(storage.nbytes())
            self._late.copy(_bytes_of(storage), _bytes_of(buffer), tensor)
            self._storages[key] = buffer
        twin = torch.empty(0, dtype=tensor.dtype)
        return twin.set_(self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _copied_part(self, tensor: Any) -> Tensor:
        """Return a copy of a DTensor, this rank's part of it in host memory."""
        twin: Any = torch.empty_like(tensor, device="cpu")
        self._late.copy(tensor.to_local(), twin.to_local(), tensor)
        return twin  # type: ignore[no-any-return]


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
