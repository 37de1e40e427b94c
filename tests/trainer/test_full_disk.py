"""What happens to a run whose disk is full or cannot be written to: a real file system, small and then read-only."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from hf_compat import Trainer, TrainerCallback
from hf_compat.checkpoint.completeness import is_complete
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.errors import CheckpointWriteError
from tests.scripts.crash_script import Model, Rows
from tests.support.trainers import arguments


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system; test_crash.py limits the size of files instead")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk):
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def free(disk):
    (disk / "filler").unlink()


def remount(disk, how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def open_files():
    """What this process has open, deleted files too."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # a thread of another test may have closed it
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names


TROUBLES = {
    "full": (fill, free, r"No space left on device|\(0\.00 GB free"),
    "read-only": (lambda disk: remount(disk, "ro"), lambda disk: remount(disk, "rw"), "Read-only file system"),
}


class Trouble(TrainerCallback):
    """Spoils the disk after update step 3, and makes it good again after 5."""

    def __init__(self, disk, spoil, mend):
        self.disk, self.spoil, self.mend = disk, spoil, mend
        self.saver = None

    def on_step_end(self, args, state, control, **kwargs):
        if self.saver._thread is not None:  # what is written in the background meets the disk as it was
            self.saver._thread.join()
        if state.global_step == 3:
            self.spoil(self.disk)
        if state.global_step == 5:
            self.mend(self.disk)


@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("kind", TROUBLES)
@pytest.mark.parametrize("answer", ["raise", "warn"])
def test_disk_that_fails_for_a_while(disk, caplog, kind, answer, in_background):
    """The error says what is wrong, the checkpoints from before stay; asked to, the run goes on and saves again."""
    spoil, mend, cause = TROUBLES[kind]
    torch.manual_seed(0)
    args = arguments(
        disk / "out",
        per_device_train_batch_size=2,
        max_steps=6,
        save_steps=2,
        save_total_limit=2,
        on_save_error=answer,
        save_async=in_background,
    )
    trouble = Trouble(disk, spoil, mend)
    trainer = Trainer(Model(100), args, train_dataset=Rows(12, 1), callbacks=[trouble])
    trouble.saver = trainer.checkpoint_writer.saver
    with caplog.at_level(logging.ERROR):
        if answer == "raise":
            with pytest.raises(CheckpointWriteError, match=rf"checkpoint-4` cannot be written: .*({cause})"):
                trainer.train()
            assert trainer.state.global_step == 4
            mend(disk)
        else:
            trainer.train()
            assert re.search(cause, caplog.text)
    saved = [item.step for item in list_checkpoints(disk / "out")]
    assert saved == ([2] if answer == "raise" else [2, 6])
    assert all(is_complete(item.path) for item in list_checkpoints(disk / "out"))
    assert len(list((disk / "out").iterdir())) == len(saved)


@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
def test_disk_that_becomes_full_in_any_file(disk, in_background):
    """In the weights, or while the last bytes of a small file are flushed: the reason is told, and the run goes on."""

    def train(answer):
        shutil.rmtree(disk / "out", ignore_errors=True)
        fields = {"max_steps": 1, "save_steps": 1, "on_save_error": answer, "save_async": in_background}
        args = arguments(disk / "out", **fields)
        trainer = Trainer(Model(100), args, train_dataset=Rows(12, 1))
        trainer.train()
        return trainer

    train("raise")
    needed = sum(-(-path.stat().st_size // 4096) * 4 for path in (disk / "out").rglob("*") if path.is_file())
    errors = []
    for kilobytes in range(needed - 32, needed + 12, 4):
        remount(disk, "size=1m")
        shutil.rmtree(disk / "out", ignore_errors=True)
        remount(disk, f"size={kilobytes}k")
        try:
            train("raise")
        except CheckpointWriteError as error:
            errors.append(error)
        assert train("warn").state.global_step == 1
        assert [file for file in open_files() if str(disk) in file] == [], "they would keep the disk full"
    assert len(errors) >= 8
    assert {(error.errno, error.strerror) for error in errors} == {(errno.ENOSPC, "No space left on device")}
    assert all(error.filename.startswith(str(disk / "out" / "checkpoint-1")) for error in errors)
    assert all("No space left on device" in str(error) for error in errors)
