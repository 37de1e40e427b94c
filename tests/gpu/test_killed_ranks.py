"""A rank with a GPU is killed while ranks share sequences: torchrun starts all again, as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.harness import needs_fake_gpu, start_on_gpus
from tests.support.combinations import MOMENTS
from tests.support.elastic import SCRIPT, assert_same_end, request
from tests.support.launchers import launcher
from tests.support.processes import finish

pytestmark = [needs_fake_gpu, pytest.mark.slow]


def folder_of_a_run(folder: Path, **lost: object) -> Path:
    """Train on two GPUs that share each sequence, and return where."""
    word = request(folder, strategy="context", fields={"use_cpu": False}, **lost)
    (ended,) = finish([start_on_gpus([*launcher("torchrun", 2), SCRIPT, word], devices=2)])
    assert ended.code == 0, ended.output
    assert (folder / "lost").exists() == bool(lost)
    return folder


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return the folder of a run that nothing happens to."""
    pytest.importorskip("accelerate", minversion="1.12")
    return folder_of_a_run(tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment(unbroken, tmp_path, moment):
    """Before an update, in one, in the middle of a save or after it: either rank in turn."""
    assert_same_end(folder_of_a_run(tmp_path, lost=MOMENTS.index(moment) % 2, moment=moment, step=5), unbroken)
