"""What has been written of a checkpoint goes to the disk while the rest is being written."""

import os
import shutil
import subprocess
import sys
import threading

import pytest

from hf_compat.checkpoint import flushing
from hf_compat.checkpoint.flushing import flushing_early
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointWriteError
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system has no sync_file_range")


class Begun:
    """What the system was asked to write, by the files' names and sizes."""

    def __init__(self, monkeypatch, fail=lambda path: None):
        self._seen, self._changed = set(), threading.Condition()
        begin_writing = flushing.begin_writing

        def spied(path):
            fail(path)
            size = path.stat().st_size
            begin_writing(path)
            with self._changed:
                self._seen.add((path.name, size))
                self._changed.notify_all()

        monkeypatch.setattr(flushing, "begin_writing", spied)

    def wait_for(self, name, size):
        with self._changed:
            assert self._changed.wait_for(lambda: (name, size) in self._seen, PATIENCE)


def test_files_go_to_the_disk_as_they_grow(tmp_path, monkeypatch):
    """Each file does while the block runs, in folders too, and again when it has grown; the thread ends with it."""
    begun = Begun(monkeypatch)
    with flushing_early(tmp_path):
        (tmp_path / "inner").mkdir()
        for name in ("weights", "inner/optimizer"):
            (tmp_path / name).write_bytes(b"12")
            begun.wait_for(os.path.basename(name), 2)
        with (tmp_path / "weights").open("ab") as file:
            file.write(b"3")
        begun.wait_for("weights", 3)
    assert "hf_compat-flush" not in {thread.name for thread in threading.enumerate()}


def test_a_checkpoint_goes_to_the_disk_as_it_is_written(tmp_path, monkeypatch):
    """The first file does while the writer waits for the second."""
    begun = Begun(monkeypatch)

    def save(folder):
        (folder / "weights").write_bytes(b"12")
        begun.wait_for("weights", 2)

    launch = Launch(rank=0, local_rank=0, world_size=1)
    CheckpointWriter().write(tmp_path / "checkpoint-1", save, step=1, launch=launch, writes_files=True)
    assert (tmp_path / "checkpoint-1" / "weights").exists()


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch, error):
    """A draft that has got its final name is no failure, nor is another user's file; all others go to the disk."""

    def fail(path):
        if path.name == "draft":
            raise error(path)

    begun = Begun(monkeypatch, fail)
    with flushing_early(tmp_path):
        for name in ("a", "draft", "z"):
            (tmp_path / name).write_bytes(b"12")
        begun.wait_for("a", 2)
        begun.wait_for("z", 2)


@pytest.fixture
def failing_disk(tmp_path):
    """A file system of 200 MB on a device of 24 MB: writing to files works, until they go to the disk."""
    device, folder = tmp_path / "device", tmp_path / "disk"
    device.mkdir()
    folder.mkdir()
    image = str(device / "image")
    commands = (
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(device)],
        ["truncate", "-s", "200m", image],
        ["mkfs.ext4", "-q", "-E", "nodiscard", image],
        ["mount", "-o", "loop", image, str(folder)],
    )
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    try:
        for command in commands:
            tool = shutil.which(command[0], path=environment["PATH"])
            if tool is None or subprocess.run(command, capture_output=True, check=False, env=environment).returncode:
                pytest.skip("no file system can be made and mounted here")
        yield folder
    finally:
        for mounted in (folder, device):
            if os.path.ismount(mounted):
                subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_disk_that_fails_while_the_rest_is_written(failing_disk, monkeypatch):
    """What the system could not write early it tells when the file is flushed: no checkpoint appears."""
    begun, size = Begun(monkeypatch), 60 * 2**20

    def write(folder):
        (folder / "weights").write_bytes(os.urandom(size))
        begun.wait_for("weights", size)

    with pytest.raises(CheckpointWriteError, match="cannot be written"):
        CheckpointWriter().write_alone(failing_disk / "checkpoint-1", write, step=1)
    assert not (failing_disk / "checkpoint-1").exists()


def test_systems_that_cannot_begin_early(tmp_path, monkeypatch):
    """Without ``sync_file_range`` the block runs without a thread."""
    monkeypatch.setattr(flushing, "_sync_file_range", lambda: None)
    with flushing_early(tmp_path):
        assert "hf_compat-flush" not in {thread.name for thread in threading.enumerate()}
