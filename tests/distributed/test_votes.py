"""Votes: what one rank knows all know, and an attempt that fails on one is given up by all."""

import subprocess
import sys
from pathlib import Path

import pytest

from hf_compat.distributed.votes import GivenUpError, attempt, give_up, is_attempting, max_over_ranks, vote

VOTE = """
import gc, importlib.util, sys
from torch import distributed
spec = importlib.util.spec_from_file_location("votes", sys.argv[4])
votes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(votes)
rank = int(sys.argv[1])
for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
    place = f"file://{sys.argv[2]} {backend}"
    distributed.init_process_group(backend, init_method=place, rank=rank, world_size=2)
    print([votes.max_over_ranks(note) for note in (0, int(sys.argv[3]), 0)], len(votes._cpu_groups))
    distributed.destroy_process_group()
    gc.collect()
print(len(votes._cpu_groups))
"""


def test_all_processes_agree(tmp_path):
    """What one process notes, all know at the same window's end; one process by itself asks nobody.

    A group made for that goes with the group of the run.
    """
    module = Path(sys.modules[max_over_ranks.__module__].__file__)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", VOTE, str(rank), str(tmp_path / "store"), str(note), str(module)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, note in enumerate((0, 15))
    ]
    told = "".join(f"[0, 15, 0] {groups}\n" for groups in (0, 1, 1))
    assert [rank.communicate()[0] for rank in ranks] == [f"{told}0\n"] * 2
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
