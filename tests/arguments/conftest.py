"""Arguments of a process that no launcher has started."""

import os

import pytest


@pytest.fixture(autouse=True)
def launched_by_nothing(monkeypatch):
    """No launcher's variables, ours or those that transformers 4.57 leaves behind."""
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "SLURM_")) or name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)
