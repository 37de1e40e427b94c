"""On several ranks, a save in the background has the states of its update step, whatever a script changes after it."""

import pytest

from tests.support.checkpoints import assert_same_checkpoints
from tests.support.paths import SCRIPTS
from tests.support.processes import forked_ranks


@pytest.mark.parametrize(
    "sharding",
    ["DDP", pytest.param("FSDP", marks=pytest.mark.slow), pytest.param("ZeRO-2", marks=pytest.mark.slow)],
)
def test_changes_between_two_updates(sharding, tmp_path):
    """Every file of every rank is, byte for byte, what a synchronous save writes of the same run."""
    if sharding == "ZeRO-2":
        pytest.importorskip("deepspeed")
    ended = forked_ranks(SCRIPTS / "changes_script.py", tmp_path, sharding)
    assert ended.code == 0, ended.output
    assert_same_checkpoints(tmp_path / "later", tmp_path / "at once")
    with pytest.raises(AssertionError):
        assert_same_checkpoints(tmp_path / "unchanged", tmp_path / "at once")
