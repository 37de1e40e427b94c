"""Random states go from hf_compat to transformers and back, and continue the same stream."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from hf_compat.checkpoint import states
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import upstream_trainer
from tests.support.helpers import PlainModel


def draw():
    """The next number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.fixture
def trainer(tmp_path):
    return upstream_trainer(PlainModel(), tmp_path / "run")


def test_in_memory():
    """Setting a state taken before repeats what was drawn since."""
    state = states.rng_state()
    first = draw()
    states.set_rng_state(state)
    assert draw() == first


def test_upstream_reads_ours(trainer, tmp_path):
    """The Trainer of transformers continues from our file."""
    states.save_rng_state(tmp_path)
    expected = draw()
    trainer._load_rng_state(str(tmp_path))
    assert draw() == expected


def test_ours_reads_upstreams(trainer, tmp_path):
    """We continue from the file of transformers' Trainer."""
    trainer._save_rng_state(str(tmp_path))
    expected = draw()
    states.load_rng_state(tmp_path)
    assert draw() == expected


def test_same_content_as_upstream(trainer, tmp_path):
    """The file holds the same keys and values as transformers' own."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    states.save_rng_state(tmp_path / "ours")
    trainer._save_rng_state(str(tmp_path / "theirs"))
    files = [(tmp_path / name / "rng_state.pth").read_bytes() for name in ("ours", "theirs")]
    assert files[0] == files[1]


def test_each_process_has_its_file(tmp_path):
    """Of several processes each reads its own state; one that was not there before has none."""
    expected = []
    for rank in (0, 1):
        states.save_rng_state(tmp_path, rank=rank, world_size=2)
        expected.append(draw())
    for rank in (1, 0):
        states.load_rng_state(tmp_path, rank=rank, world_size=2)
        assert draw() == expected[rank]
    before = states.rng_state()
    states.load_rng_state(tmp_path, rank=2, world_size=3)
    assert random.getstate() == before["python"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({}, id="empty"),
        pytest.param([], id="a list"),
        pytest.param({"python": (3, (1, 2), None), "numpy": (), "cpu": 0}, id="wrong values"),
        pytest.param({"python": random.getstate(), "numpy": np.random.get_state(), "cpu": 0}, id="wrong torch state"),
    ],
)
def test_no_random_states(content, tmp_path):
    """Anything else in the file is an error that names it."""
    torch.save(content, tmp_path / "rng_state.pth")
    with pytest.raises(CheckpointError, match=r"rng_state\.pth` does not hold random states"):
        states.load_rng_state(tmp_path)
