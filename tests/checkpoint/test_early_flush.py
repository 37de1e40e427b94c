"""What has been written of a checkpoint goes to the disk while the rest is being written."""

import errno
import os
import threading

import pytest

from hf_compat.checkpoint import early_flush
from hf_compat.checkpoint.early_flush import flushing_early
from hf_compat.checkpoint.writer import CheckpointWriter, Part
from hf_compat.distributed.launch import Launch

PATIENCE = 60


def spy(monkeypatch, then=lambda path: None):
    """Call ``then`` after each flush of a file; return the names of those flushed and a condition that is notified."""
    seen, changed = [], threading.Condition()
    flush_file = early_flush.flush_file

    def spied(path):
        flush_file(path)
        with changed:
            seen.append(path.name)
            changed.notify_all()
        then(path)

    monkeypatch.setattr(early_flush, "flush_file", spied)
    return seen, changed


def test_files_are_flushed_as_they_grow(tmp_path, monkeypatch):
    """Each file is flushed while the block runs, in folders too, and again when it has grown."""
    seen, changed = spy(monkeypatch)

    def await_flush(name, times):
        with changed:
            assert changed.wait_for(lambda: seen.count(name) == times, PATIENCE)

    with flushing_early(tmp_path):
        (tmp_path / "inner").mkdir()
        for name in ("weights", "inner/optimizer"):
            (tmp_path / name).write_bytes(b"12")
            await_flush(os.path.basename(name), 1)
        with (tmp_path / "weights").open("ab") as file:
            file.write(b"3")
        await_flush("weights", 2)
    assert seen.count("optimizer") == 1
    assert "hf_compat-flush" not in {thread.name for thread in threading.enumerate()}


def test_a_checkpoint_is_flushed_as_it_is_written(tmp_path, monkeypatch):
    """The writer has the first part's file flushed while it writes the second part."""
    seen, changed = spy(monkeypatch)

    def second(folder):
        with changed:
            assert changed.wait_for(lambda: "weights" in seen, PATIENCE)

    parts = [Part(lambda folder: (folder / "weights").write_bytes(b"12")), Part(second)]
    launch = Launch(rank=0, local_rank=0, world_size=1)
    settings = {"step": 1, "launch": launch, "writes_files": True, "background": False}
    CheckpointWriter().write(tmp_path / "checkpoint-1", parts, **settings)
    assert (tmp_path / "checkpoint-1" / "weights").exists()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk fails"), OSError(errno.ENOSPC, "the disk is full")])
def test_the_system_could_not_write(tmp_path, monkeypatch, error):
    """The system tells of that once: it is raised at the end; an error of the block itself comes first."""

    def fail(path):
        raise error

    seen, changed = spy(monkeypatch, fail)

    def write(then=None):
        (tmp_path / "weights").write_bytes(b"12")
        with changed:
            assert changed.wait_for(lambda: seen, PATIENCE)
        if then is not None:
            raise then

    with pytest.raises(OSError, match="the disk") as raised, flushing_early(tmp_path):
        write()
    assert raised.value is error
    with pytest.raises(KeyError), flushing_early(tmp_path):
        write(KeyError)


def test_a_file_that_gets_its_final_name(tmp_path, monkeypatch):
    """A draft that is gone when it is to be flushed is no failure; what it became is flushed."""

    def rename(path):
        if path.name == "draft":
            raise FileNotFoundError(path)

    seen, changed = spy(monkeypatch, rename)
    with flushing_early(tmp_path):
        (tmp_path / "draft").touch()
        with changed:
            assert changed.wait_for(lambda: "draft" in seen, PATIENCE)
        (tmp_path / "draft").rename(tmp_path / "weights")
        with changed:
            assert changed.wait_for(lambda: "weights" in seen, PATIENCE)
