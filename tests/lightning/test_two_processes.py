"""Pieces on two processes."""

from __future__ import annotations

import pytest
import torch

from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks

pytestmark = pytest.mark.slow


def test_pieces_on_two_processes(tmp_path):
    """Taken apart or put together by hand, a run under DDP has the logs and weights of ``train``, bit for bit.

    So have what ``validate`` returns of it, and what ``predict`` does.
    """
    ends = {}
    for way in ("train", "to_lightning", "by_hand"):
        forked_ranks(SCRIPTS / "pieces_script.py", way, tmp_path / f"{way}.pt")
        ends[way] = torch.load(tmp_path / f"{way}.pt", weights_only=True)
    for way in ("to_lightning", "by_hand"):
        for name in ("logs", "metrics", "predictions"):
            assert ends[way][name] == ends["train"][name]
        for name, weight in ends["train"]["weights"].items():
            assert torch.equal(ends[way]["weights"][name], weight)
        assert sorted(path.name for path in (tmp_path / way).iterdir()) == [
            "checkpoint-3",
            "checkpoint-6",
            "checkpoint-8",
        ]
