"""Finding the other ranks in a store in which an earlier start has left its words."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from hf_compat.distributed.elastic_store import agree_on_name, uses_agent_store
from tests.support.processes import PATIENCE


def start(store, ranks):
    """Let ``ranks`` of three agree, in this order but at the same time; return their names."""
    names = {}

    def agree(rank):
        names[rank] = agree_on_name(store, rank, 3, timeout=timedelta(seconds=PATIENCE))

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return names


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["rank 0 first", "rank 0 last"])
def test_each_start_has_a_name_of_its_own(order):
    """All ranks of a start have one name, which is that of no earlier start with the same store."""
    store = HashStore()
    names = [start(store, order) for _ in range(3)]
    assert all(set(each) == {0, 1, 2} and len(set(each.values())) == 1 for each in names)
    assert len({each[0] for each in names}) == 3


def test_a_rank_of_an_earlier_start_is_not_taken_for_a_new_one():
    """Rank 0 goes on answering until the rank that is there now has its word answered."""
    store = HashStore()
    store.set("hf_compat/word/1", "of a start that has ended")
    store.set("hf_compat/word/2", "of another")
    names = start(store, (0, 1, 2))
    assert len(names) == 3
    assert len(set(names.values())) == 1


def test_a_rank_that_never_comes():
    """Rank 0 waits no longer than it was told, and names those that it has waited for."""
    store = HashStore()
    for rank in (1, 2):
        store.set(f"hf_compat/word/{rank}", "of a start that has ended")
    with pytest.raises(RuntimeError, match=r"ranks 1, 2 did not answer within 0:00:00\.1"):
        agree_on_name(store, 0, 3, timeout=timedelta(seconds=0.1))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, False), ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, True)],
)
def test_when_the_agent_keeps_the_store(variables, expected):
    """Torchrun's agent says so in a variable; other launchers, and torchrun with a store of rank 0's, do not."""
    assert uses_agent_store(variables) is expected
