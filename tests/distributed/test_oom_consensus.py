"""Votes: what one rank knows all know, and an attempt that fails on one is given up by all."""

import os
import subprocess
import sys

import pytest

from hf_compat.distributed.oom_consensus import (
    GivenUpError,
    give_up,
    is_attempting,
    max_over_ranks,
    oom_consensus,
    vote,
)
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE

VOTE = """
import gc, sys
from datetime import timedelta
import torch
from torch import distributed
from hf_compat.distributed import collectives, oom_consensus

rank, note = int(sys.argv[1]), int(sys.argv[3])

def background():
    return collectives.background_group(timedelta(minutes=1))

for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
    place = f"file://{sys.argv[2]} {backend}"
    distributed.init_process_group(backend, init_method=place, rank=rank, world_size=2)
    told = [oom_consensus.max_over_ranks(number) for number in (0, note, 0)]
    print(told, [*oom_consensus._gloo_groups.get(distributed.group.WORLD, ())])
    with oom_consensus.oom_consensus(lambda error: isinstance(error, MemoryError)) as current:
        try:
            if rank == 1:
                raise MemoryError
            background()
        except (MemoryError, oom_consensus.GivenUpError) as error:
            print(current.ends_by(error))
    total = torch.tensor([note])
    distributed.all_reduce(total, group=background())
    print(background() is background(), int(total), len(oom_consensus._gloo_groups))
    distributed.destroy_process_group()
    gc.collect()
print(len(oom_consensus._gloo_groups))
"""

LEAVE = """
from hf_compat.distributed.processes import wait_for_gloo_threads
wait_for_gloo_threads()
"""
"""The end of each script: a thread of gloo that is not idle aborts a process that exits."""


def outputs(script, store, words):
    """What each rank of ``script`` prints; its arguments are the rank, the store and its words."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script + LEAVE, str(rank), str(store), *given],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank, given in enumerate(words)
    ]
    return [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]


def test_all_processes_agree(tmp_path):
    """What one process notes, all know at the same window's end; one process by itself asks nobody.

    Groups made for that, and for a thread, go with the group of the run. Before one is made there is a vote.
    """
    told = "".join(f"[0, 15, 0] {groups}\nTrue\nTrue 15 1\n" for groups in ([], ["votes"], ["votes"]))
    assert outputs(VOTE, tmp_path / "store", [["0"], ["15"]]) == [f"{told}0\n"] * 2
    assert max_over_ranks(15) == 15


PACE = """
import sys
from types import SimpleNamespace
from torch import distributed
from hf_compat.distributed import oom_consensus

rank, seconds = int(sys.argv[1]), [float(word) for word in sys.argv[3:]]
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
now = 0.0
oom_consensus.time = SimpleNamespace(monotonic=lambda: now)
paced = oom_consensus.PacedVotes()
for step, passed in enumerate(seconds, start=1):
    now += passed
    told = paced.max_over_ranks(step, 1 + rank)
    assert told in (0, 2)
    if told:
        print(step, end=" ")
"""


def test_oom_consensus_are_paced(tmp_path):
    """Fast steps have a vote after every 16th at most, slow ones after each, by the slower rank's clock."""
    fast, slow = ["0.001"] * 40, ["1"] * 15
    clocks = [[*fast, *slow, *fast], [*fast, *fast[:15], *fast]]
    begin, slowed, again = [1, 2, 4, 8, 16, 32], [48, *range(49, 56)], [56, 58, 62, 70, 86]
    told = " ".join(map(str, [*begin, *slowed, *again])) + " "
    assert outputs(PACE, tmp_path / "store", clocks) == [told] * 2


def is_failure(error):
    return isinstance(error, MemoryError)


def test_oom_consensus_outside_an_attempt():
    """Without an attempt nobody is asked and nothing is given up."""
    assert not is_attempting()
    vote()
    give_up(MemoryError())


def test_attempt_that_fails():
    """The failure ends it, also one that is still on its way out when the next vote is held; other errors do not."""
    with oom_consensus(is_failure) as current:
        vote()
        assert is_attempting()
        assert not current.ends_by(ValueError())
        try:
            raise MemoryError
        except MemoryError:
            with pytest.raises(GivenUpError):
                vote()
        assert current.ends_by(ValueError())
        with pytest.raises(GivenUpError):
            vote()
    assert not is_attempting()


def test_failure_that_was_handled_before():
    """A failure that the caller is handling when the attempt begins is none of the attempt."""
    try:
        raise MemoryError
    except MemoryError:
        with oom_consensus(is_failure) as current:
            vote()
            assert not current.is_given_up
