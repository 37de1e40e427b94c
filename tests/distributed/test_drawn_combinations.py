"""Combinations drawn at random: the numbers of transformers where that runs, and of the run that is not interrupted."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

from tests.support.drawn import SEEDS, draw
from tests.support.elastic import assert_same_end, logs, request, train_elastically, weights

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.slow

LIBRARIES = {"ours": "hf_compat", "upstream": "transformers"}
UPSTREAM_RESUMES = Version(transformers.__version__) >= Version("5.0")
"""4.57 cannot load its own optimizer state on two CPU processes: it asks torch for the device "cpu:0"."""
ROUNDED = {"float32": 1e-5, "bf16": 0.05}
"""Precision → how far apart the logs of other numbers of processes may be."""


def seeds_of(side):
    """Return the seeds of what is run on ``side``."""
    return [seed for seed in SEEDS if side == "ours" or (draw(seed).has_upstream and UPSTREAM_RESUMES)]


def requested(folder, side, seed, **more):
    """Return the request for a run of a seed's combination."""
    drawn = draw(seed)
    fields = drawn.fields | (drawn.own_fields if side == "ours" else {})
    given = {"strategy": drawn.strategy, "samples": drawn.samples, "dropout": 0.0, "fields": fields}
    return request(folder / side / str(seed), library=LIBRARIES[side], **given, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run all, on each number of processes and under each library in one launch; return where the runs are."""
    folder = tmp_path_factory.mktemp("drawn")
    whole, part = folder / "whole", folder / "part"
    train_elastically([requested(whole, "ours", seed) for seed in SEEDS], processes=2)
    for side in LIBRARIES:
        seeds = seeds_of(side)
        if seeds:
            train_elastically([requested(part, side, seed, until=draw(seed).until) for seed in seeds], processes=2)
        for processes in sorted({draw(seed).processes for seed in seeds}):
            resumed = [seed for seed in seeds if draw(seed).processes == processes]
            train_elastically([requested(part, side, seed) for seed in resumed], processes=processes)
    return folder


@pytest.mark.parametrize("seed", SEEDS)
def test_as_the_unbroken_run(finished, seed):
    """Resumed on two processes it ends bit for bit as the run that was not interrupted, on others up to rounding."""
    drawn = draw(seed)
    part, whole = (finished / which / "ours" / str(seed) for which in ("part", "whole"))
    if drawn.processes == 2:
        assert_same_end(part, whole)
        return
    close = ROUNDED[drawn.precision]
    torch.testing.assert_close(logs(part), logs(whole), rtol=close, atol=close)
    if drawn.precision == "float32":
        torch.testing.assert_close(weights(part), weights(whole), rtol=close, atol=close)


@pytest.mark.skipif(not UPSTREAM_RESUMES, reason="transformers 4 does not resume on two CPU processes")
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if draw(seed).has_upstream])
def test_as_transformers(finished, seed):
    """Interrupted and resumed, both libraries end with the same logs and weights, bit for bit."""
    assert_same_end(finished / "part" / "ours" / str(seed), finished / "part" / "upstream" / str(seed))
