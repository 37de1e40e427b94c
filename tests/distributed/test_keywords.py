"""Keywords of ``lightning.Trainer`` on two processes."""

import json

import pytest

from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what each process saw."""
    folder = tmp_path_factory.mktemp("keywords")
    ended = forked_ranks(SCRIPTS / "keyword_script.py", folder)
    assert ended.code == 0, ended.output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_processes_agree(ranks):
    """Logs, evaluations and weights are the same on both, whatever the keywords; each reads its share."""
    for name in ranks[0]:
        for fact in ("losses", "norms", "evaluated_at", "weights"):
            assert ranks[0][name][fact] == ranks[1][name][fact], (name, fact)
        assert not set(ranks[0][name]["read"][:8]) & set(ranks[1][name]["read"][:8])


@pytest.mark.slow
def test_keywords_count_update_steps_of_all(ranks):
    """Epochs of 4 update steps of 6, their second half evaluated in each second; at least 2, of which 3 were asked."""
    for rank in ranks:
        everything, plain = rank["everything"], rank["plain"]
        assert everything["checked"] == 1
        assert everything["evaluated_at"] == [6, 8]
        assert len(everything["losses"]) == 8
        assert everything["read"] == plain["read"]
        assert len(rank["development"]["losses"]) == 2
        assert rank["development"]["evaluated_at"] == [2]
        assert rank["by time"]["evaluated_at"] == [1, 2, 3]
        assert min(everything["norms"]) > 0.05


@pytest.mark.slow
def test_a_sampler_is_left_as_it_is(ranks):
    """With ``use_distributed_sampler=False`` a DistributedSampler decides: all samples once an epoch, in new order."""
    reads = [rank["own sampler"]["read"] for rank in ranks]
    every = sorted(index / 10 for index in range(24))
    assert [len(read) for read in reads] == [24, 24]
    for epoch in (slice(0, 12), slice(12, 24)):
        assert sorted(reads[0][epoch] + reads[1][epoch]) == pytest.approx(every)
    assert reads[0][:12] != reads[0][12:]
