"""The signal that SLURM sends before a job's time limit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

__all__ = ["slurm_signal"]


def slurm_signal(plugins: Iterable[Any]) -> int | None:
    """Return the signal on which a SLURM job is requeued, None if it is not.

    Args:
        plugins: Plugins of ``lightning.Trainer``. A ``SLURMEnvironment`` among them sets the signal, or with
            ``auto_requeue=False`` disables requeueing. Default inside a SLURM job: SIGUSR1.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    for plugin in plugins:
        if isinstance(plugin, SLURMEnvironment):
            return plugin.requeue_signal if plugin.auto_requeue else None
    return getattr(signal, "SIGUSR1", None)
