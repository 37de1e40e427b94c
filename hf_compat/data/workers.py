"""What a worker of a data loader does on start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["begin_worker"]


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
