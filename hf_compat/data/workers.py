"""What a worker process of a data loader does first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["begin_worker"]


def begin_worker(worker_id: int, signals: Sequence[int], then: Callable[[int], Any] | None) -> None:
    """Have a worker process of a data loader outlive ``signals``, until the run has made the update step under way.

    A scheduler signals all processes of a job, and without its workers a run could not come to the step's end. What
    the run itself sends goes on ending the worker: so torch ends one that hangs. A worker whose run is no more ends by
    itself.

    Args:
        worker_id: Number of the worker.
        signals: What the run notes.
        then: Called with the number.
    """
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows: handlers are not told who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        threading.Thread(target=_end_if_told_by_the_run, args=(signals,), daemon=True).start()
    if then is not None:
        then(worker_id)


def _end_if_told_by_the_run(signals: Sequence[int]) -> None:
    while signal.sigwaitinfo(signals).si_pid != os.getppid():
        pass
    os._exit(0)  # a hanging thread would not let an exception through
