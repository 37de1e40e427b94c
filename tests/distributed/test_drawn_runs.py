"""Drawn runs of two, three and four processes over gloo do as transformers', to the last bit, on every process."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version

from tests.scripts.drawn_scenarios import name_of
from tests.support.drawn_runs import RUN_SEEDS, draw_run
from tests.support.parity import differences
from tests.support.processes import outcome, run_scenarios

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.slow

IS_5 = Version(transformers.__version__) >= Version("5")
COMPARED = [seed for seed in RUN_SEEDS if IS_5 or not draw_run(seed).needs_5]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run them all, in a launch for each number of processes; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("drawn_runs")
    for processes in sorted({draw_run(seed).processes for seed in COMPARED}):
        names = [name_of(seed) for seed in COMPARED if draw_run(seed).processes == processes]
        words = [f"{library}:{name}" for name in names for library in ("upstream", "ours")]
        run_scenarios(folder, words, processes=processes)
    return folder


@pytest.mark.parametrize("seed", COMPARED)
def test_as_transformers(finished, seed):
    """Events, random states, batches, logs, weights, results and files are equal."""
    for rank in range(draw_run(seed).processes):
        name = name_of(seed)
        found = differences(outcome(finished, name, "upstream", rank), outcome(finished, name, "ours", rank))
        assert not found, f"{draw_run(seed)}, process {rank}:\n{found}"
