"""Running the scripts of FSDP and tensor parallelism, and comparing what their ranks saw with one process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripts.sharded_common import run_scenario
from tests.support.checkpoints import assert_same_checkpoints
from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks

TOLERANCE = 1e-5


def launch(script: str, folder: Path, *words: str, processes: int = 2) -> Path:
    """Run scenarios of ``script``; fail with their tracebacks; return ``folder``, where the results are."""
    ended = forked_ranks(SCRIPTS / script, folder, *words, processes=processes)
    errors = [f"{path}:\n{path.read_text()}" for path in sorted(folder.glob("*.error"))]
    assert ended.code == 0, "\n".join(errors) or ended.output
    return folder


def run_alone(scenarios: Mapping[str, Callable[[Path], Any]], folder: Path) -> Path:
    """Run scenarios in this process; return ``folder``, where the results are."""
    for name, body in scenarios.items():
        run_scenario(name, folder, body)
    return folder


def seen(folder: Path, name: str, rank: int = 0) -> Any:
    """Return what a rank saw of a scenario."""
    return torch.load(folder / f"{name}.{rank}", weights_only=False)


def check(found: dict[str, Any], expected: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    """Fail unless logs and weights agree."""
    assert [sorted(line) for line in found["logs"]] == [sorted(line) for line in expected["logs"]]
    for line, other in zip(found["logs"], expected["logs"], strict=True):
        assert line == pytest.approx(other, rel=tolerance)
    assert list(found["weights"]) == list(expected["weights"])
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=tolerance, atol=tolerance, msg=name)


def check_in_background(folder: Path, name: str, at_once: str) -> None:
    """Fail unless the run ``name``, saved in the background, did and left what the whole run of ``at_once`` did."""
    assert_same_checkpoints(folder / name / "output", folder / at_once / "output")
    for rank in (0, 1):
        found, expected = (seen(folder, each, rank)["whole"] for each in (name, at_once))
        assert found["logs"] == expected["logs"]
        assert all(torch.equal(found["weights"][key], value) for key, value in expected["weights"].items())


def assert_other_members(folder: Path, name: str) -> None:
    """Fail unless on both ranks the weights were gathered without ``unwrap``, and a second model was refused."""
    for rank in (0, 1):
        found = seen(folder, name, rank)
        assert ["a second trainable model is not supported" in text for text in found["refused"]] == [True, True]
        assert found["gathered"].keys() == found["weights"].keys()
        assert all(torch.equal(found["gathered"][key], weight) for key, weight in found["weights"].items())
