"""Seeding of all random generators, in upstream's order, and full determinism."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


_FURTHER_BACKENDS = ("mlu", "musa", "npu", "hpu", "xpu")
"""Devices whose packages add a module of that name to torch, with its own random generators."""

_SEEDED_BY = {
    ("albumentations", "BaseCompose"): "set_random_seed",
    ("albumentations", "BasicTransform"): "set_random_seed",
    ("monai", "Randomizable"): "set_random_state",
}
"""Package and name of the transforms with a random generator of their own → the method that seeds it."""

_DETERMINISM_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}


def seed_run(args: TrainingArguments) -> None:
    """Seed all random generators as ``seed`` says, with deterministic algorithms under ``full_determinism``."""
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random generators of Python, numpy, torch and every device.

    Args:
        seed: 0 to 2**32 - 1.
        deterministic: Whether torch must use deterministic algorithms from now on, and raise if there is none.

    Raises:
        ValueError: If ``seed`` is out of range for numpy.
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
    """Seed all random generators and use deterministic algorithms in torch and its libraries.

    The environment variables only have an effect if this is called before the device is first used.

    Args:
        seed: 0 to 2**32 - 1.
        warn_only: Whether an operation without a deterministic algorithm warns instead of raising.
    """
    set_seed(seed)
    os.environ.update(_DETERMINISM_VARIABLES)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_worker(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """Seed a data loader worker, differently for every worker of every rank.

    Args:
        worker_id: Index of the worker, which torch's initial seed already includes.
        num_workers: Workers per rank; releases before 4.52 only pass the worker's index.
        rank: The rank of this process.
    """
    set_seed(torch.initial_seed() % 2**32 + num_workers * rank)


def transforms_with_generators(dataset: object) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield the name of each attribute of ``dataset`` that is a transform with a generator, and what seeds that."""
    for name, value in getattr(dataset, "__dict__", {}).items():
        kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__)
        method = next((_SEEDED_BY[kind] for kind in kinds if kind in _SEEDED_BY), None)
        if method is not None:
            yield name, getattr(value, method)


def seed_worker_and_transforms(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """Do as :func:`seed_worker`, and seed the transforms of the worker's data set that have generators of their own."""
    seed_worker(worker_id, num_workers, rank)
    for _, seed in transforms_with_generators(getattr(get_worker_info(), "dataset", None)):
        seed(torch.initial_seed() % 2**32)
