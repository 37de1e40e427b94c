"""Saving in the background: a copy in host memory, written by a thread while training continues."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from hf_compat.distributed.launch import Launch

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "BackgroundSaver",
    "Write",
    "Writes",
    "background_problems",
    "is_requested",
    "to_host",
]

ENVIRONMENT_VARIABLE = "HF_COMPAT_ASYNC_SAVE"
"""If set to 1, checkpoints are saved in the background, as with ``TrainingArguments(save_async=True)``."""


class _Arguments(Protocol):
    """The fields of ``TrainingArguments`` that say how checkpoints are saved."""

    save_async: bool
    save_on_each_node: bool

    @property
    def launch(self) -> Launch:
        """Rank, world size and number of nodes."""


Write: TypeAlias = Callable[[], object]
"""A deferred call that writes a file."""


def is_requested(args: _Arguments) -> bool:
    """Return whether the arguments or the environment request saving in the background."""
    return bool(args.save_async) or os.environ.get(ENVIRONMENT_VARIABLE, "").lower() in ("1", "true", "yes", "on")


def background_problems(args: _Arguments, strategy: str, *, is_supported: bool) -> list[str]:
    """Return why saving in the background, if it is requested, is not supported.

    Args:
        args: The training arguments.
        strategy: The strategy's name, for the message.
        is_supported: Whether it saves in the background: each rank has the full state dicts.
    """
    if not is_requested(args):
        return []
    field = f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE)"
    problems = []
    if not is_supported:
        problems.append(
            f"{field} is not supported with `{strategy}`: sharded checkpoints can only be saved synchronously. Set "
            "`save_async=False`."
        )
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"{field} is not supported with `save_on_each_node=True` on {args.launch.num_nodes} nodes: a node cannot "
            "tell when the checkpoints of the others are complete. Set one of the two to False."
        )
    return problems


def to_host(value: Any) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it.

    Tensors that share memory share it in the copy too, so that the files written of either are the same.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
    """
    return _Copier().copied(value)


class _Copier:
    """Copies each object once, however often it is met."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[object, Any]] = {}  # with the original, whose id must not be reused meanwhile
        self._storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copied(self, value: Any) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, self._copy(value))
        return self._copies[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _copied_tensor(value, self._storages)
        if isinstance(value, dict):
            twin = copy.copy(value)  # keeps the type of dict, and a state dict's `_metadata`
            for key, item in value.items():
                twin[key] = self.copied(item)
            return twin
        if type(value) in (list, tuple):
            return type(value)(self.copied(item) for item in value)
        return copy.deepcopy(value)


def _copied_tensor(tensor: Tensor, storages: dict[tuple[torch.device, int], torch.UntypedStorage]) -> Tensor:
    tensor = tensor.detach()
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return tensor.to("cpu", copy=True)
    storage = tensor.untyped_storage()
    key = (tensor.device, storage.data_ptr())
    if key not in storages:
        storages[key] = torch.UntypedStorage(storage.nbytes()).copy_(storage)  # type: ignore[no-untyped-call]
    twin = torch.empty(0, dtype=tensor.dtype)
    return twin.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())


class Writes:
    """Makes calls that write files: immediately or, inside ``deferred``, later and from a snapshot."""

    def __init__(self) -> None:
        self._deferred: list[Write] | None = None

    def __call__(self, write: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call ``write`` with the arguments, or defer the call."""
        if self._deferred is None:
            write(*args, **kwargs)
        else:
            self._deferred.append(partial(write, *args, **kwargs))

    def snapshot(self, state: Any) -> Any:
        """Return ``state``, or a copy of it in host memory if calls are deferred."""
        return state if self._deferred is None else to_host(state)

    def state_of(self, model: nn.Module) -> dict[str, Any] | None:
        """Return a copy of the model's state dict if calls are deferred; else None, for the one it has when written."""
        if self._deferred is None:
            return None
        copied: dict[str, Any] = to_host(model.state_dict())
        return copied

    @contextmanager
    def deferred(self, calls: list[Write]) -> Iterator[None]:
        """Append to ``calls`` each call that would write, instead of making it."""
        before, self._deferred = self._deferred, calls
        try:
            yield
        finally:
            self._deferred = before


class BackgroundSaver:
    """Runs one task at a time in a thread, and raises its error where the next one is started or awaited.

    The thread is not a daemon: the process waits for it at exit. An unpickled saver has no task.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[type[BackgroundSaver], tuple[()]]:
        """Return what makes an idle saver: a thread, and its error, belong to this process."""
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
