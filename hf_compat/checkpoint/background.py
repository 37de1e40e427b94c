"""Saving in the background: a copy in host memory, written by a thread while training continues."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hf_compat.checkpoint.host_copy import HostBuffers, clones_on_host, to_host
from hf_compat.environment import is_switched_on

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "BackgroundTasks",
    "CheckpointFileWriter",
    "Deferred",
    "SharedWrite",
    "Write",
    "is_requested",
]

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
