"""Saving in the background: a copy in host memory, written by a thread while the training goes on."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ENVIRONMENT_VARIABLE", "BackgroundSaver", "Writes", "background_problems", "is_wanted", "to_host"]

ENVIRONMENT_VARIABLE = "HF_COMPAT_ASYNC_SAVE"
"""Set to 1 it asks for saving in the background, as ``TrainingArguments(save_async=True)`` does."""


def is_wanted(args: Any) -> bool:
    """Return whether the arguments or the environment ask for saving in the background."""
    return bool(args.save_async) or os.environ.get(ENVIRONMENT_VARIABLE, "").lower() in ("1", "true", "yes", "on")


def background_problems(args: Any, strategy: str, *, is_supported: bool) -> list[str]:
    """Return what is wrong where saving in the background is asked for.

    Args:
        args: The training arguments.
        strategy: The strategy's name, to be told.
        is_supported: Whether that saves in the background: each rank has the full state dicts.
    """
    if not is_wanted(args):
        return []
    asked = f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE)"
    problems = []
    if not is_supported:
        problems.append(
            f"{asked} is not supported with `{strategy}`: sharded checkpoints can only be saved synchronously. Set "
            "`save_async=False`."
        )
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"{asked} excludes `save_on_each_node=True` with {args.launch.num_nodes} nodes: set one of them."
        )
    return problems


def to_host(value: Any) -> Any:
    """Return a copy of ``value`` in host memory that shares nothing with it.

    Tensors in it that share memory do so in the copy too: what is written of it is what would be written of ``value``.

    Args:
        value: Tensors, plain values, and dicts, lists and tuples of them.
    """
    return _Copier().copied(value)


class _Copier:
    """Copies each object once, however often it is met."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}  # with the object itself, so that its id is not given away
        self._storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copied(self, value: Any) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, self._copy(value))
        return self._copies[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _copied_tensor(value, self._storages)
        if isinstance(value, dict):
            twin = copy.copy(value)  # keeps an ordered dict's kind, and the versions noted on a state dict
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
    """Makes calls that write files, at once or, inside ``kept``, later and of a copy."""

    def __init__(self) -> None:
        self._later: list[Callable[[], Any]] | None = None

    def __call__(self, write: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call ``write`` with the arguments, or keep the call."""
        if self._later is None:
            write(*args, **kwargs)
        else:
            self._later.append(partial(write, *args, **kwargs))

    def snapshot(self, state: Any) -> Any:
        """Return ``state``, or a copy of it in host memory if calls are kept."""
        return state if self._later is None else to_host(state)

    def state_of(self, model: nn.Module) -> Any:
        """Return None, which stands for the model's weights at the time of writing, or a copy if calls are kept."""
        return None if self._later is None else to_host(model.state_dict())

    @contextmanager
    def kept(self, calls: list[Callable[[], Any]]) -> Iterator[None]:
        """Append to ``calls`` what would be written."""
        before, self._later = self._later, calls
        try:
            yield
        finally:
            self._later = before


class BackgroundSaver:
    """Runs one piece of work at a time in a thread, and hands on what goes wrong in it.

    The thread is no daemon: a process that comes to its end waits for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work``, after what was begun before has ended.

        Raises:
            Exception: What went wrong in the work before.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="hf_compat-save")
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return once nothing is being done.

        Raises:
            Exception: What went wrong since the last call.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
