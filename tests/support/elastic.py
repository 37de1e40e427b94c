"""Runs of ``elastic_script.py``: starting them, and what they have left."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.support.paths import SCRIPTS
from tests.support.processes import Ended, forked_ranks

SCRIPT = SCRIPTS / "elastic_script.py"


def request(folder: Path, **fields: Any) -> str:
    """Return the word by which the script trains in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return json.dumps({"folder": str(folder), **fields})


def train_elastically(requests: list[str], *, processes: int) -> Ended:
    """Train on ``processes`` processes, one request after the other; fail unless all came to their end."""
    ended = forked_ranks(SCRIPT, *requests, processes=processes)
    assert ended.code == 0, ended.output
    return ended


def logs(folder: Path) -> list[list[float]]:
    """Return loss, gradient norm and learning rate of each update step."""
    return json.loads((folder / "log.json").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the whole weights at the end."""
    return torch.load(folder / "weights.pt", weights_only=True, map_location="cpu")


def samples(folder: Path) -> Counter[int]:
    """Return how often each sample has been trained on, over all processes."""
    return Counter(int(number) for path in folder.glob("samples-*") for number in path.read_text().split())


def assert_same_end(folder: Path, unbroken: Path) -> None:
    """Fail unless two runs have the same logs and weights to the last bit."""
    assert logs(folder) == logs(unbroken)
    found, expected = weights(folder), weights(unbroken)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
