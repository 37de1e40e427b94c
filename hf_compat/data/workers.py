"""What a worker of a data loader does on start, and how it is told to end."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["begin_worker", "keep_queues_open"]

_QUEUES = ("_index_queues", "_worker_result_queue", "_workers_done_event")
"""What an iterator of torch's ``DataLoader`` tells its workers by; it has none without workers."""


def begin_worker(worker_id: int, signals: Sequence[int], then: Callable[[int], Any] | None) -> None:
    """Keep a data loader worker running when ``signals`` arrive, so that the current update step can finish.

    A scheduler signals all processes of a job, and without its workers a run could not finish the step. A signal sent
    by the run itself still ends the worker, as torch does with one that hangs. A worker whose parent process is gone
    exits by itself.

    Args:
        worker_id: Number of the worker.
        signals: The signals that the run handles.
        then: The loader's own ``worker_init_fn``.
    """
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows, where a handler does not see who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        threading.Thread(target=_exit_on_signal_of_parent, args=(signals,), daemon=True).start()
    if then is not None:
        then(worker_id)


def _exit_on_signal_of_parent(signals: Sequence[int]) -> None:
    while signal.sigwaitinfo(signals).si_pid != os.getppid():
        pass
    os._exit(0)  # an exception would not end a thread that hangs


def keep_queues_open(iterator: object) -> None:
    """Keep the queues of ``iterator``, of a data loader with workers, open for as long as it lives.

    It tells its workers to end when it is freed. Where it is freed together with all that a Trainer holds, the garbage
    collector may close its queues before: the workers are not told, and five seconds are waited for each.
    """
    queues = [getattr(iterator, name) for name in _QUEUES if hasattr(iterator, name)]
    if queues:
        # What a finalizer refers to is no garbage, and so is finalized after the iterator.
        weakref.finalize(iterator, queues.clear).atexit = False
