"""Seeds for every random generator a run draws from, in upstream's order, and the switches for full determinism."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

__all__ = ["enable_full_determinism", "seed_worker", "set_seed"]

_FURTHER_BACKENDS = ("mlu", "musa", "npu", "hpu", "xpu")
"""Devices whose packages add a module of that name to torch, each with generators of its own."""

_DETERMINISM_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the generators of Python, numpy, torch and every device.

    Args:
        seed: 0 to 2**32 - 1.
        deterministic: Whether torch must use deterministic algorithms from now on, and fail where it has none.

    Raises:
        ValueError: If numpy cannot take ``seed``.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
    for name in _FURTHER_BACKENDS:
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available():
            backend.manual_seed_all(seed)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed everything and make torch and its libraries choose deterministic algorithms.

    The environment variables among them act only if this is called before the device is first used.

    Args:
        seed: 0 to 2**32 - 1.
        warn_only: Whether an operation without a deterministic algorithm warns rather than fails.
    """
    set_seed(seed)
    os.environ.update(_DETERMINISM_VARIABLES)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_worker(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """Seed a worker process of a data loader, differently in every worker of every process.

    Args:
        worker_id: Number of the worker; torch has already counted it into its initial seed.
        num_workers: Workers per process; releases before 4.52 know the worker's number alone.
        rank: Number of the process among all.
    """
    set_seed(torch.initial_seed() % 2**32 + num_workers * rank)
