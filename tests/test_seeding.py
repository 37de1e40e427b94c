"""Seeds and full determinism, compared with the installed transformers."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from transformers import trainer_utils

from hf_compat import TrainingArguments, seeding

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_DETERMINISTIC",
    "FLASH_ATTENTION_DETERMINISTIC",
)


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Leave the process as it was."""
    for name in VARIABLES:
        # Set first, so that undoing removes what the functions set behind monkeypatch's back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
    torch.use_deterministic_algorithms(False)


def _left_behind():
    """Return everything that seeding may change."""
    return (
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        torch.get_rng_state().tolist(),
        torch.initial_seed(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        {name: os.environ.get(name) for name in VARIABLES},
    )


@pytest.mark.parametrize(
    ("function", "given"),
    [
        pytest.param("set_seed", (42,), id="a seed"),
        pytest.param("set_seed", (2**32 - 1,), id="the largest seed"),
        pytest.param("set_seed", (0, True), id="deterministic"),
        pytest.param("enable_full_determinism", (7,), id="full determinism"),
        pytest.param("enable_full_determinism", (7, True), id="full determinism that warns"),
        pytest.param("seed_worker", (3, 4, 2), id="a worker"),
    ],
)
def test_the_generators_are_left_as_upstream_leaves_them(function, given):
    """Generators, switches and environment are equal after either function."""
    left = []
    for library in (trainer_utils, seeding):
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
        for name in VARIABLES:
            os.environ.pop(name, None)
        torch.manual_seed(2**40 + 5)  # what a worker derives its seed from
        getattr(library, function)(*given)
        left.append(_left_behind())
    assert left[0] == left[1]


def test_workers_of_all_processes_differ():
    """With torch's seed of each worker, 2 workers in each of 3 processes get 6 different seeds."""
    draws = set()
    for rank in range(3):
        for worker in range(2):
            torch.manual_seed(100 + worker)
            seeding.seed_worker(worker, 2, rank)
            draws.add((random.random(), np.random.rand(), torch.rand(()).item()))
    assert len(draws) == 6


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_is_seeded_by_its_fields(deterministic):
    """The generators begin at ``seed``; torch is made deterministic if ``full_determinism`` says so."""
    torch.use_deterministic_algorithms(False)
    seeding.seed_run(TrainingArguments("out", use_cpu=True, seed=7, full_determinism=deterministic))
    drawn = torch.rand(1), random.random()
    seeding.set_seed(7)
    assert (torch.rand(1), random.random()) == drawn
    assert torch.are_deterministic_algorithms_enabled() is deterministic
