"""Calls of the file system that fail: the n-th of a kind, below one folder."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KINDS = ("fsync", "listdir", "mkdir", "open", "rename", "replace", "rmdir", "scandir", "stat", "unlink", "write")
"""Functions of ``os``; ``open`` is Python's too, and ``write`` that of the files that it returns."""
_PASSED_OVER = "hf_compat-flush"
"""The thread whose errors the flush repeats, and which makes another number of calls each time."""


class FailingCall:
    """The n-th call of one kind that concerns ``folder`` fails, from ``arm`` to ``disarm``.

    Attributes:
        has_failed: Whether there were as many.
    """

    def __init__(self, folder: Path, kind: str, number: int, errno: int) -> None:
        self.has_failed = self.is_armed = False
        self._folder, self._kind, self._left, self._errno = str(folder), kind, number, errno
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which the call may fail."""
        names = {"open": [(os, "open"), (io, "open")], "write": [(io, "open")]}
        places: list[tuple[Any, str]] = names.get(self._kind, [(os, self._kind)])
        before = [getattr(place, name) for place, name in places]
        for (place, name), function in zip(places, before, strict=True):
            setattr(place, name, self._writing(function) if self._kind == "write" else self._failing(function))
        try:
            yield
        finally:
            for (place, name), function in zip(places, before, strict=True):
                setattr(place, name, function)

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count(args, kwargs)
            return function(*args, **kwargs)

        return call

    def _writing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            file = function(*args, **kwargs)
            return _Written(file, lambda: self._count(args, {})) if self._concerns(args, kwargs) else file

        return call

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_passed_over = threading.current_thread().name == _PASSED_OVER
        if is_passed_over or not self.is_armed or not self._concerns(args, kwargs):
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.has_failed = True
                raise OSError(self._errno, os.strerror(self._errno), str(args[0]))

    def _concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is about the folder: by a path, or by a descriptor, as in ``shutil.rmtree`` and ``fsync``."""
        is_path = isinstance(args[0], str | Path)
        return str(args[0]).startswith(self._folder) if is_path and "dir_fd" not in kwargs else True


class _Written:
    """A file each of whose writes is counted before."""

    def __init__(self, file: Any, count: Callable[[], None]) -> None:
        self._file, self._count = file, count

    def write(self, content: Any) -> Any:
        self._count()
        return self._file.write(content)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
