"""Arguments of a process that no launcher has started."""

import os
import warnings

import pytest


@pytest.fixture(autouse=True)
def launched_by_nothing(monkeypatch):
    """No launcher's variables, ours or those that transformers 4.57 leaves behind."""
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "SLURM_")) or name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)


@pytest.fixture
def restored_environment():
    """Undo what both libraries write into the environment."""
    saved = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture
def without_warnings():
    """Show no warnings of either library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
