"""``auto_find_batch_size`` on two processes: they agree on the sizes, wherever one of them runs out of memory."""

import itertools

import pytest
import transformers
from packaging.version import Version

from tests.scripts.memory_scenarios import FURTHER_PLACES, PLACES
from tests.support.parity import compare
from tests.support.processes import outcome, run_scenarios


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run them all in one launch; return where their outcomes are."""
    folder = tmp_path_factory.mktemp("memory")
    run_scenarios(folder, ["ours:ranks_run_out_of_memory", "ours:batch_size_is_refused"])
    return folder


def kept_by_both(folder, name, scenario="ranks_run_out_of_memory"):
    """Return what both processes kept under ``name``."""
    ranks = [outcome(folder, scenario, "ours", rank).results for rank in (0, 1)]
    return [next(each["value"] for each in results if each["name"] == name) for results in ranks]


def check(folder, place, *scenario):
    """Fail unless both processes tried the sizes of one process, are alike, and go on as if both had failed.

    Of an update step that one of them made they keep what the first process did.
    """
    for failing in ("(0,)", "(1,)", "(0, 1)"):
        ranks = kept_by_both(folder, f"{place} {failing}", *scenario)
        for kept in ranks:
            assert (kept["tried"], kept["found"], kept["steps"]) == ([5, 4, 3], 3, 4)
            assert not list(compare(ranks[0], kept, "both processes"))
        if (place, failing) != ("optimizer", "(1,)"):
            for part in ("", ", buffers"):
                both = kept_by_both(folder, f"{place} (0, 1){part}", *scenario)
                found = kept_by_both(folder, f"{place} {failing}{part}", *scenario)
                assert not list(compare(both, found, f"{place} {failing}"))


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_ranks_agree_on_a_smaller_batch(folder, place):
    """Memory runs out on one process: both begin again with the sizes of one process, and stay alike."""
    check(folder, place)


@pytest.mark.slow
def test_ranks_agree_elsewhere(tmp_path):
    """So they do wherever else that is."""
    run_scenarios(tmp_path, ["ours:ranks_run_out_of_memory_elsewhere"])
    for place in FURTHER_PLACES:
        check(tmp_path, place, "ranks_run_out_of_memory_elsewhere")


@pytest.mark.slow
def test_ranks_agree_that_nothing_fits(folder):
    """If not even a sample fits into one process's memory, both raise the error that one process raises."""
    for kept in kept_by_both(folder, "nothing fits"):
        assert kept["tried"] == [5, 4, 3, 2, 1]
        assert "no executable batch size found from 5 down to 1" in kept["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "steps"), [("fsdp", 4), ("zero_1", 4), ("zero_2", 4), ("tensor_parallelism", 8)])
def test_ranks_that_communicate_in_every_layer(tmp_path, strategy, steps):
    """So do the ranks of a sharded model, with the numbers of ranks that fail together, and before a pass."""
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed")
    scenario = f"ranks_of_{strategy}_run_out_of_memory"
    run_scenarios(tmp_path, [f"ours:{scenario}"])
    for place, failing in itertools.product(("backward", "loader", "save"), ("(0,)", "(1,)", "(0, 1)")):
        ranks = kept_by_both(tmp_path, f"{place} {failing}", scenario)
        both = kept_by_both(tmp_path, f"{'save' if place == 'save' else 'loader'} (0, 1)", scenario)
        for rank, kept in enumerate(ranks):
            assert (kept["tried"], kept["found"], kept["steps"]) == ([5, 4, 3], 3, steps)
            assert not list(compare(both[rank], kept, f"{place} {failing}"))
        assert ranks[0]["losses"] == ranks[1]["losses"]
    if strategy == "fsdp":
        assert kept_by_both(tmp_path, "nothing fits", scenario) == [[5, 4, 3, 2, 1]] * 2


@pytest.mark.slow
@pytest.mark.skipif(Version(transformers.__version__) < Version("5.24"), reason="older releases train no experts")
def test_ranks_that_exchange_tokens(tmp_path):
    """So do ranks with some of the experts each, which wait for one another in the middle of either pass."""
    scenario = "ranks_with_experts_run_out_of_memory"
    run_scenarios(tmp_path, [f"ours:{scenario}"])
    both = kept_by_both(tmp_path, "forward (0, 1)", scenario)
    assert (both[0]["found"], both[0]["steps"]) == (3, 4)
    for place, failing in itertools.product(("forward", "backward"), ("(0,)", "(1,)", "(0, 1)")):
        assert not list(compare(both, kept_by_both(tmp_path, f"{place} {failing}", scenario), f"{place} {failing}"))


@pytest.mark.slow
def test_refusals(folder):
    """What a rank could not be told of in time is refused, by name, before training."""
    for rank in (0, 1):
        results = outcome(folder, "batch_size_is_refused", "ours", rank).results
        kept = {each["name"]: each["value"] for each in results}
        assert "`auto_find_batch_size=True` is not supported with `SyncBatchNorm`" in kept["a layer"]
        assert "`auto_find_batch_size=True` is not supported with `sync_batchnorm=True`" in kept["a keyword"]
        assert "`auto_find_batch_size=True` is not supported with a communication hook" in kept["a hook"]
        assert "`auto_find_batch_size=True` is not supported with FSDP version 1" in kept["fsdp"]
