"""Names of checkpoints, which of them are complete, and which is the newest."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
import transformers.trainer as upstream_trainer_module
import transformers.utils as upstream_utils
from accelerate.utils import constants as accelerate_constants
from transformers import trainer_utils as upstream

from hf_compat.checkpoint import completeness, finding, names
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import small_checkpoint, train_upstream
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


@pytest.fixture
def marked(checkpoint):
    """The same folder as if hf_compat had written it."""
    completeness.write_marker(checkpoint, step=2, run_id="run")
    return checkpoint


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def test_names_are_upstreams():
    """Every name but Lightning's is the constant of that name in transformers, or what accelerate makes of its own."""
    sharded = {
        "SHARDED_METADATA_NAME": ".metadata",
        "SHARDED_OPTIMIZER_NAME": f"{accelerate_constants.OPTIMIZER_NAME}_0",
        "SHARDED_WEIGHTS_NAME": f"{accelerate_constants.FSDP_MODEL_NAME}_0",
        "FULL_FSDP_WEIGHTS_NAME": f"{accelerate_constants.FSDP_MODEL_NAME}.bin",
        "FULL_OPTIMIZER_NAME": f"{accelerate_constants.OPTIMIZER_NAME}.bin",
    }
    assert {name: getattr(names, name) for name in sharded} == sharded
    own = {"LIGHTNING_MARKER_NAME", "LIGHTNING_STATE_NAME", *sharded}
    for name in (name for name in names.__all__ if name.isupper() and name not in own):
        places = (upstream_trainer_module, upstream, upstream_utils)
        expected = {getattr(place, name) for place in places if hasattr(place, name)}
        assert expected == {getattr(names, name)}, name


@pytest.mark.parametrize(
    ("rank", "world_size", "name"), [(0, 1, "rng_state.pth"), (0, 2, "rng_state_0.pth"), (3, 4, "rng_state_3.pth")]
)
def test_rng_state_name(rank, world_size, name):
    """One process writes one file; of several each has its own."""
    assert names.rng_state_name(rank, world_size) == name


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


def test_upstreams_checkpoint_is_complete(checkpoint):
    """A folder of transformers', without a marker, is complete."""
    assert completeness.incomplete_reason(checkpoint) is None
    assert completeness.read_marker(checkpoint) is None


def test_weights_alone_are_complete(checkpoint):
    """With `save_only_model` there are no optimizer and random states to miss."""
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).unlink()
    assert completeness.is_complete(checkpoint)


DAMAGES = [
    pytest.param(lambda folder: cut(folder / "model.safetensors"), "model.safetensors", id="weights cut"),
    pytest.param(
        lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors", id="weights empty"
    ),
    pytest.param(lambda folder: cut(folder / "optimizer.pt"), "optimizer.pt", id="optimizer cut"),
    pytest.param(lambda folder: (folder / "rng_state.pth").write_bytes(b""), "rng_state.pth", id="random state empty"),
    pytest.param(lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json", id="no state"),
    pytest.param(lambda folder: cut(folder / "trainer_state.json"), "trainer_state.json", id="state cut"),
    pytest.param(lambda folder: (folder / "trainer_state.json").write_text("[]"), "trainer_state.json", id="a list"),
    pytest.param(lambda folder: (folder / "trainer_state.json").write_text("[" * 10**5), "trainer_state", id="nested"),
    pytest.param(lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors", id="no weights"),
    pytest.param(shutil.rmtree, "does not exist", id="no folder"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_damaged_upstream_checkpoint(checkpoint, damage, named):
    """Whatever a crash of transformers' Trainer leaves is incomplete, and the reason names the file."""
    damage(checkpoint)
    assert named in completeness.incomplete_reason(checkpoint)


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_damaged_marked_checkpoint(marked, damage, named):
    """The same holds for a folder of ours that was damaged after it was written."""
    damage(marked)
    assert named in completeness.incomplete_reason(marked)


def test_marked_checkpoint(marked):
    """The marker lists each file with its size."""
    marker = completeness.read_marker(marked)
    assert completeness.is_complete(marked)
    assert (marker.step, marker.run_id) == (2, "run")
    assert marker.files == {
        path.name: path.stat().st_size for path in marked.iterdir() if path.name != names.LIGHTNING_MARKER_NAME
    }


def test_text_may_be_edited(marked):
    """A configuration edited by hand, and a file added by a callback, leave the checkpoint complete."""
    config = json.loads((marked / "config.json").read_text())
    (marked / "config.json").write_text(json.dumps({**config, "note": "edited"}))
    (marked / "extra.txt").write_text("added")
    assert completeness.is_complete(marked)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("{}", id="no fields"),
        pytest.param('{"format": 2, "step": 1, "run_id": null, "files": {}}', id="newer format"),
        pytest.param('{"format": 1, "step": "1", "run_id": null, "files": {}}', id="step is text"),
        pytest.param('{"format": 1, "step": 1, "run_id": 7, "files": {}}', id="run is a number"),
        pytest.param('{"format": 1, "step": 1, "run_id": null, "files": {"model.safetensors": null}}', id="no size"),
        pytest.param('{"format": 1, "step": 1, "run_id": null, "files": {"../secret": 1}}', id="points upwards"),
        pytest.param('{"format": 1, "step": 1, "run_id": null, "files": {"/etc/passwd": 1}}', id="points to the root"),
    ],
)
def test_marker_that_hf_compat_did_not_write(marked, content):
    """A marker that cannot be understood makes the folder incomplete, never an exception."""
    (marked / names.LIGHTNING_MARKER_NAME).write_text(content)
    assert names.LIGHTNING_MARKER_NAME in completeness.incomplete_reason(marked)


def write_index(folder, *shards):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    content = {"weight_map": {str(number): shard for number, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("shards", "reason"),
    [
        pytest.param(["one.safetensors"], None, id="all there"),
        pytest.param(["one.safetensors", "two.safetensors"], "The shard `two.safetensors`", id="one missing"),
        pytest.param(["../one.safetensors"], "outside its folder", id="points upwards"),
        pytest.param(["/etc/passwd"], "outside its folder", id="points to the root"),
        pytest.param(["..\\one.safetensors"], "outside its folder", id="points upwards on Windows"),
        pytest.param([7], "no `weight_map`", id="no name"),
    ],
)
def test_sharded_checkpoint(tmp_path, shards, reason):
    """All shards of an index have to lie in the folder."""
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    write_index(folder, *shards)
    found = completeness.incomplete_reason(folder)
    assert found is None if reason is None else reason in found


def test_other_weights_are_complete_too(tmp_path):
    """Pickled weights, an adapter and adapters in folders count as weights."""
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    weights = folder / "model.safetensors"
    for name in (
        "pytorch_model.bin",
        "adapter_model.bin",
        "adapter_model.safetensors",
        "first/adapter_model.safetensors",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        if name.endswith(".bin"):
            torch.save({}, folder / name)
        else:
            shutil.copy(weights, folder / name)
    weights.unlink()
    for name in ("pytorch_model.bin", "adapter_model.bin", "adapter_model.safetensors"):
        assert completeness.is_complete(folder)
        (folder / name).unlink()
    assert completeness.is_complete(folder)
    cut(folder / "first" / "adapter_model.safetensors")
    assert "adapter_model.safetensors" in completeness.incomplete_reason(folder)


def test_read_marker_names_the_file(marked):
    """Reading a damaged marker is a CheckpointError that names it."""
    (marked / names.LIGHTNING_MARKER_NAME).write_text("{")
    with pytest.raises(CheckpointError, match=r"lightning\.json"):
        completeness.read_marker(marked)


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
