"""Saving in the background: a copy in host memory, written by a thread while training continues."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hf_compat.environment import is_switched_on

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "BackgroundTasks",
    "Deferred",
    "HostBuffers",
    "SharedWrite",
    "Write",
    "Writes",
    "is_requested",
    "to_host",
]

ENVIRONMENT_VARIABLE = "HF_COMPAT_ASYNC_SAVE"
"""If set to 1, checkpoints are saved in the background, as with ``TrainingArguments(save_async=True)``."""


class _Arguments(Protocol):
    """The field of ``TrainingArguments`` that says how checkpoints are saved."""

    save_async: bool


Value = TypeVar("Value")
Write: TypeAlias = Callable[[], object]
"""A deferred call that writes a file."""
SharedWrite: TypeAlias = Callable[[ProcessGroup | None], object]
"""A deferred call that every rank makes, each for its part; they communicate through the process group."""


def is_requested(args: _Arguments) -> bool:
    """Return whether the arguments or the environment request saving in the background."""
    return bool(args.save_async) or is_switched_on(ENVIRONMENT_VARIABLE)


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


def to_host(value: Any, *, private: Iterable[Tensor] = (), buffers: HostBuffers | None = None) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it but the memory of ``private``.

    Tensors that share memory share it in the copy too, so that the files written of either are the same.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
        private: Tensors in host memory that nothing else uses.
        buffers: Where the memory of the copy comes from. Default: it is new.
    """
    return _Copier(private, buffers or HostBuffers()).copied(value)


class _Copier:
    """Copies each object once, however often it is met."""

    def __init__(self, private: Iterable[Tensor], buffers: HostBuffers) -> None:
        self._memory = buffers
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
            return tensor.to("cpu", copy=True)
        storage = tensor.untyped_storage()
        key = storage._cdata  # by which `torch.save` tells storages apart; empty ones have no address
        if key not in self._storages:
            buffer = self._memory.take(storage.nbytes())
            self._storages[key] = buffer.copy_(storage)
        twin = torch.empty(0, dtype=tensor.dtype)
        return twin.set_(self._storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())


def _shell_of(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in made:
        shell: nn.Module = object.__new__(type(module))
        made[id(module)] = shell
        vars(shell).update(vars(module))
        parts = {name: None if part is None else _shell_of(part, made) for name, part in module._modules.items()}
        # By `items`: where DeepSpeed watches a module, reading a name in its forward gathers the parameter.
        parameters = dict(module._parameters.items())
        vars(shell).update(_modules=parts, _parameters=parameters, _buffers=dict(module._buffers))
    return made[id(module)]


class Deferred:
    """Deferred calls that write one checkpoint.

    Args:
        group: The process group of the thread that makes them; None with a world size of 1.

    Attributes:
        own: The calls of this rank alone.
        shared: The calls that every rank makes.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.own: list[Write] = []
        self.shared: list[SharedWrite] = []

    def write(self) -> None:
        """Make the calls.

        Shared ones come first: they fail on all ranks or on none, whereas a rank whose own call failed would leave the
        others waiting.
        """
        for shared in self.shared:
            shared(self.group)
        for own in self.own:
            own()


class Writes:
    """Makes calls that write files: immediately or, inside ``deferred``, later and from a snapshot.

    Attributes:
        buffers: The memory of snapshots.
    """

    def __init__(self) -> None:
        self.buffers = HostBuffers()
        self._deferred: Deferred | None = None
        self._shared: dict[str, Any] | None = None
        self._private: list[Tensor] = []

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Context in which one checkpoint is written."""
        before, self._shared = self._shared, {}
        try:
            yield
        finally:
            self._shared = before

    def once(self, name: str) -> bool:
        """Return whether what two parts of a checkpoint share, here ``name``, is still to be written.

        Outside ``checkpoint`` always: a user may save again what has changed.
        """
        is_new = self._shared is None or name not in self._shared
        if self._shared is not None:
            self._shared[name] = None
        return is_new

    def shared(self, name: str, make: Callable[[], Value]) -> Value:
        """Return what ``make`` returns, called once for all parts of a checkpoint; outside ``checkpoint`` each time."""
        if self._shared is None:
            return make()
        if name not in self._shared:
            self._shared[name] = make()
        value: Value = self._shared[name]
        return value

    def __call__(self, write: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call ``write`` with the arguments, or defer the call."""
        if self._deferred is None:
            write(*args, **kwargs)
        else:
            self._deferred.own.append(partial(write, *args, **kwargs))

    def together(self, write: Callable[..., object], *args: Any) -> None:
        """Call ``write`` with the arguments and ``group``, a process group, or defer the call; every rank calls it."""
        if self._deferred is None:
            write(*args, group=None)
        else:
            self._deferred.shared.append(lambda group: write(*args, group=group))

    @contextmanager
    def private(self, state: dict[str, Any]) -> Iterator[None]:
        """Context in which ``snapshot`` does not copy the tensors of ``state``: in host memory, and nobody else's."""
        before, self._private = self._private, [item for item in state.values() if isinstance(item, Tensor)]
        try:
            yield
        finally:
            self._private = before

    def snapshot(self, state: Any) -> Any:
        """Return ``state``, or if calls are deferred a copy of it in host memory, made unless it is ``private``."""
        return state if self._deferred is None else to_host(state, private=self._private, buffers=self.buffers)

    def state_of(self, model: nn.Module) -> dict[str, Any] | None:
        """Return a copy of the model's state dict if calls are deferred; else None, for the one it has when written."""
        if self._deferred is None:
            return None
        copied: dict[str, Any] = to_host(model.state_dict(), buffers=self.buffers)
        return copied

    def shell_of(self, model: nn.Module) -> nn.Module:
        """Return ``model``, or if calls are deferred a copy with the same parameters, for writing a given state dict.

        A sharded model changes while it trains which parameters its modules have; those of the copy stay.
        """
        return model if self._deferred is None else _shell_of(model, {})

    @contextmanager
    def deferred(self, calls: Deferred) -> Iterator[None]:
        """Add to ``calls`` each call that would write, instead of making it."""
        before, self._deferred = self._deferred, calls
        try:
            yield
        finally:
            self._deferred = before


class BackgroundTasks:
    """Runs one task at a time in a thread, and raises its error where the next one is started or awaited.

    The thread is not a daemon: the process waits for it at exit. Unpickled, it has no task.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[type[BackgroundTasks], tuple[()]]:
        """Return what makes an idle one: a thread, and its error, belong to this process."""
        return type(self), ()

    def start(self, task: Callable[[], None]) -> None:
        """Start ``task`` once the one before has ended.

        Raises:
            Exception: The error of the task before.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name="hf_compat-save")
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return once no task is running.

        Raises:
            Exception: The error of the last task, unless it was raised before.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
