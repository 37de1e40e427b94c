"""Which signal SLURM sends before a job's time is up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

__all__ = ["slurm_signal"]


def slurm_signal(plugins: Iterable[Any]) -> int | None:
    """Return the signal upon which a SLURM job is to be requeued, None for none.

    Args:
        plugins: Those for ``lightning.Trainer``. A ``SLURMEnvironment`` among them says which signal it is, or with
            ``auto_requeue=False`` that there is none. Default inside a SLURM job: SIGUSR1.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    for plugin in plugins:
        if isinstance(plugin, SLURMEnvironment):
            return plugin.requeue_signal if plugin.auto_requeue else None
    return getattr(signal, "SIGUSR1", None)
