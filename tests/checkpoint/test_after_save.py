"""What is changed in a published checkpoint becomes the checkpoint, whole or, if the process is killed, not at all."""

import itertools
import logging
import os

import pytest

from hf_compat.checkpoint import after_save
from hf_compat.checkpoint.after_save import Published
from hf_compat.checkpoint.completeness import incomplete_reason, is_complete, read_marker, write_marker
from tests.support.checkpoints import small_checkpoint


@pytest.fixture
def published(tmp_path):
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    (folder / "foreign.txt").write_text("of somebody else")
    write_marker(folder, step=1, run_id="mine", foreign=["foreign.txt"])
    return Published.look_at(folder)


def trim(folder):
    """Change the folder as callbacks do."""
    (folder / "optimizer.pt").unlink()
    (folder / "model.safetensors").write_bytes(b"smaller")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.bin").write_bytes(b"weights")


def test_changes_become_the_checkpoint(published):
    """The marker lists what is there, but neither others' files nor drafts; step and run stay."""
    folder = published.folder
    trim(folder)
    (folder / ".nfs0001").write_text("deleted, but open")
    assert incomplete_reason(folder) is not None
    published.accept_changes()
    marker = read_marker(folder)
    expected = {"adapter/adapter_model.bin": 7, "model.safetensors": 7}
    expected |= {n: (folder / n).stat().st_size for n in ("rng_state.pth", "scheduler.pt", "trainer_state.json")}
    assert (marker.step, marker.run_id, marker.files) == (1, "mine", expected)
    assert is_complete(folder)
    (folder / "foreign.txt").unlink()
    assert is_complete(folder)
    assert sorted(path.name for path in folder.glob(".*")) == [".nfs0001"]


def test_later_damage_is_found(published):
    """What is lost after the marker was written anew makes the checkpoint incomplete."""
    trim(published.folder)
    published.accept_changes()
    (published.folder / "adapter" / "adapter_model.bin").write_bytes(b"")
    assert incomplete_reason(published.folder) == "`adapter/adapter_model.bin` has 0 bytes, expected 7."


def test_nothing_is_written_without_a_change(published, monkeypatch):
    """The marker of a checkpoint that nobody changed stays the file that it was, and nothing old is flushed."""
    marker = published.folder / "lightning.json"
    before, flushed = marker.stat(), []
    for path in published.folder.iterdir():
        if path != marker:
            os.utime(path, (1, 1))
    monkeypatch.setattr(after_save, "flush_file", flushed.append)
    published.accept_changes()
    after = marker.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert flushed == []


def test_weights_rewritten_in_the_same_size_are_flushed(published, monkeypatch):
    """The marker is right already, but the disk has to have what was written."""
    flushed = []
    for path in published.folder.iterdir():
        os.utime(path, (1, 1))
    weights = published.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[::-1])
    os.utime(published.folder / "lightning.json", (2, 2))
    monkeypatch.setattr(after_save, "flush_file", flushed.append)
    published.accept_changes()
    assert flushed == [weights]


@pytest.mark.parametrize("content", [None, "no JSON"], ids=["deleted", "damaged"])
def test_a_marker_that_is_gone_is_written_again(content, published):
    """A callback may delete all files that it does not know: the run still has to know its checkpoint."""
    marker = published.folder / "lightning.json"
    marker.unlink() if content is None else marker.write_text(content)
    published.accept_changes()
    assert read_marker(published.folder) == published.marker


def test_a_folder_that_is_gone_stays_gone(published):
    """A callback may move the checkpoint elsewhere."""
    published.folder.rename(published.folder.with_name("kept"))
    published.accept_changes()
    assert not published.folder.exists()


class Killed(BaseException):
    """Stands for the end of the process."""


def test_killed_at_any_moment(published, monkeypatch):
    """The older marker or the newer one is there, and the newer one only after all that it lists was flushed."""
    folder, older, flush = published.folder, published.marker, after_save.flush_file
    trim(folder)
    flushed, limits, seen = [], itertools.count(), []

    def counted(path):
        if len(flushed) == limit:
            raise Killed
        flushed.append(path.name)
        flush(path)

    monkeypatch.setattr(after_save, "flush_file", counted)
    while True:
        limit = next(limits)
        flushed.clear()
        try:
            published.accept_changes()
        except Killed:
            is_newer = read_marker(folder) != older
            assert is_complete(folder) == is_newer
            assert not is_newer or {"adapter_model.bin", "adapter", "model.safetensors", folder.name} <= set(flushed)
            seen.append(is_newer)
        else:
            break
    assert seen == sorted(seen)
    assert set(seen) == {False, True}
    assert is_complete(folder)


def test_a_marker_that_cannot_be_written(published, monkeypatch, caplog):
    """Training goes on with a warning: the checkpoint itself was saved. The older marker is there."""

    def fail(path):
        raise OSError("the disk failed")

    trim(published.folder)
    monkeypatch.setattr(after_save, "flush_file", fail)
    with caplog.at_level(logging.WARNING):
        published.accept_changes()
    assert "checkpoint-1 after it was saved could not be recorded: the disk failed" in caplog.text
    assert read_marker(published.folder) == published.marker
