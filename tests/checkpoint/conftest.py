"""Checkpoints that transformers' Trainer wrote, once for a file of tests."""

import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import train_upstream
from tests.support.helpers import gpt2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which transformers' Trainer wrote checkpoint-1 and checkpoint-2."""
    folder = tmp_path_factory.mktemp("upstream")
    train_upstream(gpt2(), folder)
    return folder


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy of a checkpoint of transformers' Trainer, to be damaged."""
    return Path(shutil.copytree(trained / "checkpoint-2", tmp_path / "checkpoint-2"))
