"""Runs on fake GPUs that are drawn at random do as transformers', to the last bit, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.comparing import differing
from tests.gpu.drawn import KINDS
from tests.gpu.harness import needs_fake_gpu, run_on_gpus
from tests.gpu.test_scenarios import IS_5, check, compared

SEEDS = range(21, 24)
GPUS = {"one_gpu": 1, "hsdp": 4, "loaded_tp_fsdp": 4}
"""Kind of run → its ranks; two otherwise."""

pytestmark = [
    pytest.mark.slow,
    needs_fake_gpu,
    pytest.mark.skipif(not IS_5, reason="fields of transformers 5 are drawn"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_as_transformers(kind: str, tmp_path: Path):
    """Events, random states, batches, logs, weights, results and files are equal."""
    names, ranks = compared([f"{kind}_drawn_{seed}" for seed in SEEDS]), GPUS.get(kind, 2)
    for found in run_on_gpus(differing, names, tmp_path, processes=ranks, devices=ranks):
        check(found)
