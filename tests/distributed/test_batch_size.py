"""``auto_find_batch_size`` on two processes: they agree on the sizes, wherever one of them runs out of memory."""

import pytest

from tests.scripts.memory_scenarios import PLACES
from tests.support.parity import compare
from tests.support.processes import outcome, run_scenarios


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run them all in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("memory")
    run_scenarios(folder, ["ours:ranks_run_out_of_memory", "ours:batch_size_is_refused"])
    return folder


def memory_runs_out(folder, name):
    """Return what both processes kept under ``name``."""
    ranks = [outcome(folder, "ranks_run_out_of_memory", "ours", rank).results for rank in (0, 1)]
    return [next(each["value"] for each in results if each["name"] == name) for results in ranks]


@pytest.mark.parametrize("place", PLACES)
def test_ranks_agree_on_a_smaller_batch(folder, place):
    """Memory runs out on one process, wherever it is: both begin again, with the sizes of one process, and stay alike.

    They go on as if it had run out on both at that place; of an update step that one of them made they keep what the
    first did.
    """
    for failing in ("(0,)", "(1,)", "(0, 1)"):
        ranks = memory_runs_out(folder, f"{place} {failing}")
        for kept in ranks:
            assert (kept["tried"], kept["found"], kept["steps"]) == ([5, 4, 3], 3, 4)
            assert not list(compare(ranks[0], kept, "both processes"))
        if (place, failing) != ("optimizer", "(1,)"):
            for part in ("", ", buffers"):
                both = memory_runs_out(folder, f"{place} (0, 1){part}")
                assert not list(compare(both, memory_runs_out(folder, f"{place} {failing}{part}"), place))


def test_ranks_agree_that_nothing_fits(folder):
    """If not even a sample fits into one process's memory, both raise the error that one process raises."""
    for kept in memory_runs_out(folder, "nothing fits"):
        assert kept["tried"] == [5, 4, 3, 2, 1]
        assert "no executable batch size found from 5 down to 1" in kept["error"]


def test_refusals(folder):
    """What a rank could not be told of in time is refused, by name, before training."""
    for rank in (0, 1):
        results = outcome(folder, "batch_size_is_refused", "ours", rank).results
        kept = {each["name"]: each["value"] for each in results}
        assert "`auto_find_batch_size=True` is not supported with `SyncBatchNorm`" in kept["a layer"]
        assert "`auto_find_batch_size=True` is not supported with `sync_batchnorm=True`" in kept["a keyword"]
        assert "`auto_find_batch_size=True` is not supported with a communication hook" in kept["a hook"]
        assert "`auto_find_batch_size=True` is not supported with FSDP or tensor parallelism" in kept["fsdp"]
