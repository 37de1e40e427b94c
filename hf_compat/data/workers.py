"""Loader workers that outlive the signals on which a run saves, and that end with the run."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

__all__ = ["has_short_lived", "keep_queues_open", "outliving"]

_QUEUES = ("_index_queues", "_worker_result_queue", "_workers_done_event")
"""The means by which an iterator of torch's ``DataLoader`` ends its workers; it has none without workers."""
_PARENT_CHECK_SECONDS = 5.0
"""Seconds between two checks of a worker whether its parent process is gone; torch checks as often."""

_run_worker = torch_worker._worker_loop
_make_iterator = DataLoader._get_iterator
_outliving_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


@contextmanager
def outliving(signals: Collection[int]) -> Iterator[None]:
    """Context in which every ``DataLoader`` starts workers that keep running on ``signals``.

    A scheduler signals all processes of a job, and without its workers a run could not finish the update step under
    way. A worker obeys a signal of its parent process, by which torch ends a worker that hangs, and exits when that
    process is gone. A context within another adds nothing.
    """
    # macOS and Windows: a handler does not see the sender, and workers end as torch has it.
    if not hasattr(signal, "sigtimedwait") or torch_worker._worker_loop is not _run_worker:
        yield
        return
    # What torch starts workers with, and runs in them; loaders have no setting that reaches those of other people's.
    torch_worker._worker_loop = functools.partial(_run_outliving, tuple(signals))
    DataLoader._get_iterator = functools.partialmethod(_start_outliving, tuple(signals))  # type: ignore[assignment]
    try:
        yield
    finally:
        torch_worker._worker_loop = _run_worker
        DataLoader._get_iterator = _make_iterator  # type: ignore[method-assign]


def has_short_lived() -> bool:
    """Return whether this process has children that a signal ends, such as workers not started in :func:`outliving`."""
    return any(child not in _outliving_workers for child in multiprocessing.active_children())


def _start_outliving(loader: DataLoader[Any], signals: Collection[int]) -> Any:
    """Return an iterator of ``loader`` whose workers have ``signals`` blocked from their start on.

    So has the process that forks the workers of ``forkserver``, if it is started here.
    """
    if loader.num_workers == 0:
        return _make_iterator(loader)
    if (loader.multiprocessing_context or multiprocessing).get_start_method() != "fork":
        resource_tracker.ensure_running()  # which unblocks the signals where it starts its process
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        iterator: Any = _make_iterator(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _outliving_workers.update(iterator._workers)
    return iterator


def _run_outliving(signals: Collection[int], *args: Any) -> None:
    """Run torch's worker, with ``signals`` blocked in all of its threads but one that waits for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in case an older process forks the workers
    threading.Thread(target=_exit_with_parent, args=(signals,), daemon=True).start()
    _run_worker(*args)


def _exit_with_parent(signals: Collection[int]) -> None:
    """Exit on a signal of the parent process, or when that is gone; without exception, which a hung thread ignores."""
    parent, starter = multiprocessing.parent_process(), os.getppid()  # a forkserver starts workers of its clients
    assert parent is not None, "torch runs its workers in processes of multiprocessing"
    while os.getppid() == starter and parent.is_alive():
        received = signal.sigtimedwait(signals, _PARENT_CHECK_SECONDS)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)


def keep_queues_open(iterator: object) -> None:
    """Keep the queues of ``iterator``, of a data loader with workers, open for as long as it lives.

    It ends its workers when it is freed. Where it is freed together with all that a Trainer holds, the garbage
    collector may close its queues before: the workers are not told, and five seconds are waited for each.
    """
    queues = [getattr(iterator, name) for name in _QUEUES if hasattr(iterator, name)]
    if queues:
        # What a finalizer refers to is no garbage, and so is finalized after the iterator.
        weakref.finalize(iterator, queues.clear).atexit = False
