"""Saving in the background: a copy in host memory, written by a thread while training continues."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hf_compat.environment import is_switched_on
from hf_compat.memory import mapped

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

# Copying the content of a checkpoint to host memory, so that training may go on while it is written.


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


ENVIRONMENT_VARIABLE = "HF_COMPAT_ASYNC_SAVE"
"""If set to 1, checkpoints are saved in the background, as with ``TrainingArguments(save_async=True)``."""


Value = TypeVar("Value")
Write: TypeAlias = Callable[[], object]
"""A deferred call that writes a file."""
SharedWrite: TypeAlias = Callable[[ProcessGroup | None], object]
"""A deferred call that every rank makes, each for its part; they communicate through the process group."""


def is_requested(args: TrainingArguments) -> bool:
    """Return whether the arguments or the environment request saving in the background."""
    return bool(args.save_async) or is_switched_on(ENVIRONMENT_VARIABLE)


_CONFIGURATIONS = ("config", "generation_config")
"""Attributes of a transformers model that are saved with its weights."""


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
        place: The folder that they write into, once it is there.
        own: The calls of this rank alone.
        shared: The calls that every rank makes.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.place: Path | None = None
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


class CheckpointFileWriter:
    """Makes calls that write files: immediately, perhaps two at once, or inside ``deferred`` later and from a snapshot.

    Attributes:
        buffers: The memory of snapshots.
    """

    def __init__(self) -> None:
        self.buffers = HostBuffers()
        self._deferred: Deferred | None = None
        self._shared: dict[str, Any] | None = None
        self._private: list[Tensor] = []
        self._concurrent = BackgroundTasks()
        self._may_be_concurrent = False

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Context in which one checkpoint is written; what was called ``concurrently`` has ended when it ends."""
        before, self._shared = self._shared, {}
        try:
            yield
            self.finish_concurrent()
        except BaseException:
            with suppress(BaseException):  # the first error is raised
                self.finish_concurrent()
            raise
        finally:
            self._shared = before

    def is_first(self, name: str) -> bool:
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

    def concurrently(self, write: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call ``write`` in a thread inside ``allowing_concurrent``; otherwise call it now, or defer the call."""
        if self._may_be_concurrent:
            self._concurrent.start(partial(write, *args, **kwargs))
        else:
            self(write, *args, **kwargs)

    def finish_concurrent(self) -> None:
        """Wait for the call that was made in a thread; what follows may depend on it, or change what it writes.

        Raises:
            Exception: Its error.
        """
        self._concurrent.wait()

    @contextmanager
    def allowing_concurrent(self) -> Iterator[None]:
        """Context, inside ``checkpoint``, in which ``concurrently`` writes a file while those after it are written."""
        before, self._may_be_concurrent = self._may_be_concurrent, True
        try:
            yield
        finally:
            self._may_be_concurrent = before

    def collectively(self, write: Callable[..., object], *args: Any) -> None:
        """Call ``write`` with the arguments and ``group``, a process group, or defer the call; every rank calls it."""
        if self._deferred is None:
            write(*args, group=None)
        else:
            self._deferred.shared.append(lambda group: write(*args, group=group))

    @contextmanager
    def already_copied(self, state: dict[str, Any]) -> Iterator[None]:
        """Context in which ``snapshot`` does not copy the tensors of ``state``: in host memory already, and private."""
        before, self._private = self._private, [item for item in state.values() if isinstance(item, Tensor)]
        try:
            yield
        finally:
            self._private = before

    def snapshot(self, state: Any) -> Any:
        """Return ``state``; if calls are deferred a copy of it in host memory, except for what is ``already_copied``.

        Args:
            state: Tensors, plain values, and dicts, lists and tuples of them.
        """
        if self._deferred is None:
            return state
        return to_host(state, private=self._private, buffers=self.buffers)

    @contextmanager
    def dropping_a_failed_snapshot(self) -> Iterator[None]:
        """Context, when calls are deferred, that an error leaves without what was copied: its memory is used again."""
        try:
            yield
        except BaseException:
            self.buffers.give_back()
            raise

    def state_of(self, model: nn.Module) -> dict[str, Any] | None:
        """Return a copy of the model's state dict if calls are deferred; else None, for the one it has when written."""
        return None if self._deferred is None else self.snapshot(model.state_dict())

    def clones_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the state dict ``state`` in host memory, in which no tensor shares memory with another."""
        return clones_on_host(state, buffers=self.buffers)

    def shell_of(self, model: nn.Module) -> nn.Module:
        """Return ``model``, or if calls are deferred a copy with the same parameters, for writing a given state dict.

        Training may change which parameters the modules of a model have, as that of a sharded one does, and the
        configuration; the copy's stay.
        """
        if self._deferred is None:
            return model
        shell = _shell_of(model, {})
        configurations = {name: value for name, value in vars(shell).items() if name in _CONFIGURATIONS}
        vars(shell).update(copy.deepcopy(configurations))
        return shell

    @property
    def is_deferring(self) -> bool:
        """Whether calls are deferred."""
        return self._deferred is not None

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

    def start(self, task: Callable[[], object]) -> None:
        """Start ``task`` once the one before has ended.

        Raises:
            Exception: The error of the task before.
        """
        self.wait()
        gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._run, args=(task, gpu), name="hf_compat-save")
        self._thread.start()

    def _run(self, task: Callable[[], object], gpu: int | None) -> None:
        try:
            if gpu is not None:  # a new thread starts on GPU 0, where it would take memory from rank 0
                torch.cuda.set_device(gpu)
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
