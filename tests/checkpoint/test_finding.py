"""Which checkpoints there are, which is the newest, and which the best."""

from __future__ import annotations

import logging
import shutil

import pytest
from transformers import trainer_utils as upstream

from hf_compat.checkpoint import finding
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import cut, small_checkpoint


def test_list_checkpoints_by_step(tmp_path):
    """Only folders named checkpoint-<number> are listed, in the order of the numbers."""
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-9-copy", "checkpoint-", "my-checkpoint-3", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    assert finding.list_checkpoints(tmp_path) == [
        finding.Checkpoint(9, tmp_path / "checkpoint-9"),
        finding.Checkpoint(10, tmp_path / "checkpoint-10"),
    ]


def test_last_checkpoint_is_upstreams(trained):
    """Among complete checkpoints the newest is the one that transformers finds, as the same path."""
    assert finding.get_last_checkpoint(str(trained)) == upstream.get_last_checkpoint(str(trained))


def test_no_last_checkpoint(tmp_path):
    """An empty folder has none; a folder that is not there is an error, as in transformers."""
    assert finding.get_last_checkpoint(tmp_path) is None
    for get_last_checkpoint in (finding.get_last_checkpoint, upstream.get_last_checkpoint):
        with pytest.raises(FileNotFoundError):
            get_last_checkpoint(str(tmp_path / "nowhere"))


def test_last_checkpoint_passes_over_incomplete_ones(tmp_path, caplog):
    """A newer incomplete checkpoint is passed over, and a warning names it with the reason."""
    small_checkpoint(tmp_path / "checkpoint-5")
    cut(small_checkpoint(tmp_path / "checkpoint-10") / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert finding.get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")
    assert "checkpoint-10" in caplog.text
    assert "`model.safetensors` is damaged" in caplog.text


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(["state.pkl"], id="files of any name"),
        pytest.param(["model.safetensors", "optimizer.bin", "scheduler.bin"], id="accelerate's save_state"),
        pytest.param(["config.json", "model.safetensors"], id="save_pretrained"),
    ],
)
def test_last_checkpoint_may_be_of_a_loop_of_ones_own(checkpoint, tmp_path, files):
    """A folder that no Trainer has written is found as in transformers; a run resumes from a Trainer's alone."""
    own = tmp_path / "checkpoint-7"
    own.mkdir()
    for name in files:
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, own)
        else:
            (own / name).write_bytes(b"anything")
    assert finding.get_last_checkpoint(str(tmp_path)) == upstream.get_last_checkpoint(str(tmp_path)) == str(own)
    assert finding.find_checkpoint(tmp_path, True, is_main=True) == str(checkpoint)


def test_last_checkpoint_of_a_loop_of_ones_own_that_was_killed(checkpoint, tmp_path):
    """A folder without a file, or with weights that end early, is passed over, whoever made it."""
    (tmp_path / "checkpoint-8").mkdir()
    own = tmp_path / "checkpoint-7"
    own.mkdir()
    shutil.copy(checkpoint / "model.safetensors", own)
    cut(own / "model.safetensors")
    assert finding.get_last_checkpoint(tmp_path) == str(checkpoint)


def test_a_path_that_is_no_checkpoint(tmp_path):
    """A file, and the folder of a run, are named as what they are, with what to do."""
    newest = small_checkpoint(tmp_path / "run" / "checkpoint-4")
    (tmp_path / "last.ckpt").write_bytes(b"anything")
    for path, message in (
        ("last.ckpt", "it is a file, not a folder. .* `hf-compat convert FILE FOLDER`"),
        ("run", f"it is the folder of a run, whose newest checkpoint is `{newest}`"),
        ("nowhere", "the folder does not exist"),
        ("True", "the folder does not exist. 'auto' resumes if there is a checkpoint, also on a command line"),
    ):
        with pytest.raises(CheckpointError, match=f"{path}'`: {message}.* Can't find a valid checkpoint"):
            finding.find_checkpoint(tmp_path, tmp_path / path, is_main=True)


def test_best_checkpoint_of_a_run_that_moved(tmp_path):
    """It is looked for beside the resumed one; where it is still in its old place, or nowhere, the path stays."""
    resumed, best = (small_checkpoint(tmp_path / "new" / f"checkpoint-{step}") for step in (4, 2))
    assert finding.relocated(str(tmp_path / "old" / "checkpoint-2"), resumed) == str(best)
    assert finding.relocated(r"C:\runs\old\checkpoint-2", resumed) == str(best)
    assert finding.relocated("old/checkpoint-3", resumed) == "old/checkpoint-3"
    kept = small_checkpoint(tmp_path / "old" / "checkpoint-2")
    assert finding.relocated(str(kept), resumed) == str(kept)


@pytest.mark.parametrize("path", ["..", "../../elsewhere", "/etc/passwd", "old/checkpoint-2/..", "checkpoint-x", ""])
def test_best_checkpoint_that_is_none(path, tmp_path):
    """A state that names anything but a checkpoint folder is refused, with the name of the resumed checkpoint."""
    resumed = small_checkpoint(tmp_path / "checkpoint-4")
    with pytest.raises(CheckpointError, match=r"checkpoint-4.*do not trust"):
        finding.relocated(path, resumed)
