"""Saving in the background: a copy in host memory, written by a thread while training continues."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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


def to_host(value: Any, buffers: HostBuffers | None = None) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it.

    Tensors that share memory share it in the copy too, so that the files written of either are the same.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
        buffers: Where the memory of the copy comes from. Default: it is new.
    """
    copier = _Copier(buffers or HostBuffers())
    copied = copier.copied(value)
    copier.finish()
    return copied


def as_it_is(value: Any, buffers: HostBuffers) -> Any:
    """Return ``value``, which has been made for the checkpoint: in host memory, and nothing else uses it."""
    return value


def clones_on_host(state: Mapping[str, Any], buffers: HostBuffers) -> dict[str, Any]:
    """Return a copy of ``state`` in host memory, in which no tensor shares memory: each may be part of a larger one.

    Args:
        state: A state dict.
        buffers: Where the memory of the copy comes from.
    """
    copier = _Copier(buffers)
    copied = {
        name: copier.cloned(value) if isinstance(value, Tensor) else copier.copied(value)
        for name, value in state.items()
    }
    copier.finish()
    return copied


class _Copier:
    """Copies each object once, however often it is met; GPUs copy on streams of their own until ``finish``."""

    def __init__(self, buffers: HostBuffers) -> None:
        self._memory = buffers
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copies: dict[int, tuple[object, Any]] = {}  # with the original, whose id must not be reused meanwhile
        self._storages: dict[int, torch.UntypedStorage] = {}

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


def is_requested(args: TrainingArguments) -> bool:
    """Return whether the arguments or the environment request saving in the background."""
    return bool(args.save_async) or is_switched_on(ENVIRONMENT_VARIABLE)


_CONFIGURATIONS = ("config", "generation_config")
"""Attributes of a transformers model that are saved with its weights."""


def _shell_of(module: nn.Module, shells: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in shells:
        shell: nn.Module = object.__new__(type(module))
        shells[id(module)] = shell
        vars(shell).update(vars(module))
        parts = {name: None if part is None else _shell_of(part, shells) for name, part in module._modules.items()}
        # By `items`: where DeepSpeed watches a module, reading a name in its forward gathers the parameter.
        parameters = dict(module._parameters.items())
        vars(shell).update(_modules=parts, _parameters=parameters, _buffers=dict(module._buffers))
    return shells[id(module)]


def shell_of(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` with the same parameters, for writing a given state dict.

    Training may change which parameters the modules of a model have, as that of a sharded one does, and the
    configuration; the copy's stay.
    """
    shell = _shell_of(model, {})
    configurations = {name: value for name, value in vars(shell).items() if name in _CONFIGURATIONS}
    vars(shell).update(copy.deepcopy(configurations))
    return shell


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file of a checkpoint, or several of one library: what is collected of the run, and what writes it."""

    save: Callable[..., object]
    """Writes it: called with content and path and, if all ranks write it together, ``group``."""
    content: Any
    """Tensors, plain values, and dicts, lists and tuples of them."""
    path: Path
    """The file, or the folder of several."""
    copy: Callable[[Any, HostBuffers], Any] = to_host
    """Returns a copy of the content, in host memory, that training leaves alone."""
    by_all_ranks: bool = False
    """Whether every rank writes its part of it; they communicate through the process group ``group``."""

    def write(self, group: ProcessGroup | None = None) -> None:
        """Write it.

        Args:
            group: The process group of the thread that writes. Default: the group of training.
        """
        self.save(self.content, self.path, **({"group": group} if self.by_all_ranks else {}))


Put: TypeAlias = Callable[[CheckpointFile], object]
"""What takes each file when it is collected: ``CheckpointFile.write`` at once, ``Snapshot.add`` in the background."""


class Snapshot:
    """The files of one checkpoint, for the thread that writes them: their contents are copies in host memory.

    Args:
        buffers: Where the memory of the copies comes from.
        group: The process group of the thread; None with a world size of 1.

    Attributes:
        folder: The folder that they are written into, once it is there.
        files: What has been collected.
    """

    def __init__(self, buffers: HostBuffers, group: ProcessGroup | None = None) -> None:
        self._memory = buffers
        self.group = group
        self.folder: Path | None = None
        self.files: list[CheckpointFile] = []

    def add(self, file: CheckpointFile) -> None:
        """Copy the content of ``file``, and keep it."""
        self.files.append(replace(file, content=file.copy(file.content, self._memory)))

    def write(self) -> None:
        """Write the files.

        Those that all ranks write come first: they fail on all ranks or on none, whereas a rank that could not write
        one of its own would leave the others waiting.
        """
        for file in sorted(self.files, key=lambda file: not file.by_all_ranks):
            file.write(self.group)


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


@contextmanager
def written_side_by_side() -> Iterator[Put]:
    """Context whose value takes files; they are written at its end, the first in this thread, the others beside it."""
    files: list[CheckpointFile] = []
    yield files.append

    def write(part: slice) -> None:
        for file in files[part]:
            file.write()

    others = BackgroundTasks()
    others.start(lambda: write(slice(1, None)))
    try:
        write(slice(1))
    finally:
        others.wait()
