"""Votes: what one rank knows all know, and an attempt that fails on one is given up by all."""

import os
import subprocess
import sys

import pytest

from hf_compat.distributed.votes import GivenUpError, attempt, give_up, is_attempting, max_over_ranks, vote
from tests.support.paths import ROOT

VOTE = """
import gc, sys
from datetime import timedelta
import torch
from torch import distributed
from hf_compat.distributed import collectives, votes

rank, note = int(sys.argv[1]), int(sys.argv[3])

def background():
    return collectives.background_group(timedelta(minutes=1))

for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
    place = f"file://{sys.argv[2]} {backend}"
    distributed.init_process_group(backend, init_method=place, rank=rank, world_size=2)
    told = [votes.max_over_ranks(number) for number in (0, note, 0)]
    print(told, [*votes._gloo_groups.get(distributed.group.WORLD, ())])
    with votes.attempt(lambda error: isinstance(error, MemoryError)) as current:
        try:
            if rank == 1:
                raise MemoryError
            background()
        except (MemoryError, votes.GivenUpError) as error:
            print(current.ends_by(error))
    total = torch.tensor([note])
    distributed.all_reduce(total, group=background())
    print(background() is background(), int(total), len(votes._gloo_groups))
    distributed.destroy_process_group()
    gc.collect()
print(len(votes._gloo_groups))
"""


def test_all_processes_agree(tmp_path):
    """What one process notes, all know at the same window's end; one process by itself asks nobody.

    Groups made for that, and for a thread, go with the group of the run. Before one is made there is a vote.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", VOTE, str(rank), str(tmp_path / "store"), str(note)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank, note in enumerate((0, 15))
    ]
    told = "".join(f"[0, 15, 0] {groups}\nTrue\nTrue 15 1\n" for groups in ([], ["votes"], ["votes"]))
    assert [rank.communicate(timeout=300)[0] for rank in ranks] == [f"{told}0\n"] * 2
    assert max_over_ranks(15) == 15


def is_failure(error):
    return isinstance(error, MemoryError)


def test_votes_outside_an_attempt():
    """Without an attempt nobody is asked and nothing is given up."""
    assert not is_attempting()
    vote()
    give_up(MemoryError())


def test_attempt_that_fails():
    """The failure ends it, also one that is still on its way out when the next vote is held; other errors do not."""
    with attempt(is_failure) as current:
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
        with attempt(is_failure) as current:
            vote()
            assert not current.is_given_up
