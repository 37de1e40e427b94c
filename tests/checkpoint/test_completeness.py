"""Which checkpoints are complete."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from hf_compat.checkpoint import completeness, names
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import cut, small_checkpoint


@pytest.fixture
def marked(checkpoint):
    """The same folder as if hf_compat had written it."""
    completeness.write_marker(checkpoint, step=2, run_id="run")
    return checkpoint


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
