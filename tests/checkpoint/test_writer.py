"""The writer of checkpoints: the order of its parts, what may wait, what follows, and that it can be pickled."""

import errno
import logging
import pickle
import subprocess
import threading
import warnings

import pytest
import torch

from hf_compat import HFCompatWarning
from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks, CheckpointFile
from hf_compat.checkpoint.completeness import read_marker
from hf_compat.checkpoint.publish import _host
from hf_compat.checkpoint.rotation import OwnedCheckpoints
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointWriteError
from hf_compat.overriding import WarnOnce, is_overridden
from hf_compat.state import TrainerControl, TrainerState, export_states

ONE = Launch(world_size=1, local_world_size=1)
HERE = threading.main_thread().name


def write_thread(_, path):
    """Write the name of the thread that writes."""
    path.write_text(threading.current_thread().name)


def collect(folder, put=CheckpointFile.write):
    """Save two files, of which the second may not wait."""
    put(CheckpointFile(write_thread, None, folder / "a.txt"))
    write_thread(None, folder / "b.txt")


@pytest.mark.parametrize("background", [False, True], ids=["synchronously", "in the background"])
def test_what_a_checkpoint_consists_of(background, tmp_path):
    """What is collected is written, and what follows done, in the background's thread if there is one."""
    writer, followed = CheckpointWriter(), []
    writer.owned = OwnedCheckpoints("mine")
    settings = {"step": 3, "launch": ONE, "writes_files": True}

    def follow(folder):
        followed.append((folder.name, folder.is_dir(), threading.current_thread().name))

    if background:
        writer.write_in_background(tmp_path / "checkpoint-3", collect, then=follow, **settings)
    else:
        writer.write(tmp_path / "checkpoint-3", collect, **settings)
    writer.wait()
    later = "hf_compat-save" if background else HERE
    folder = tmp_path / "checkpoint-3"
    assert [(folder / name).read_text() for name in ("a.txt", "b.txt")] == [later, HERE]
    assert followed == ([("checkpoint-3", True, later)] if background else [])
    marker = read_marker(folder)
    assert (marker.step, marker.run_id, set(marker.files)) == (3, "mine", {"a.txt", "b.txt"})


def test_what_files_of_a_checkpoint_share_is_made_once(tmp_path):
    """For each checkpoint anew; outside a save each time, since what it is made of may have changed."""
    writer, made = CheckpointWriter(), []

    def make():
        made.append(len(made))
        return made[-1]

    assert [writer.once("a", make), writer.once("a", make)] == [0, 1]
    for step in (1, 2):
        found = []
        writer.write_alone(
            tmp_path / f"checkpoint-{step}",
            lambda _, found=found: found.extend(writer.once(name, make) for name in "aba"),
            step=step,
        )
        assert found == [2 * step, 2 * step + 1, 2 * step]
    assert writer.once("a", make) == 6


def test_a_folder_that_is_looked_at_is_waited_for(tmp_path):
    """Where somebody expects the folder it is there when it has been collected."""
    settings = {"step": 1, "launch": ONE, "writes_files": True, "must_finish": lambda: True}
    CheckpointWriter().write_in_background(tmp_path / "checkpoint-1", collect, **settings)
    assert (tmp_path / "checkpoint-1" / "a.txt").is_file()


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    """Neither a folder nor a last step is left of a part that fails, however the checkpoint is written."""

    def fail(folder):
        raise OSError("the disk failed")

    writer = CheckpointWriter()
    with pytest.raises(CheckpointWriteError, match="the disk failed"):
        writer.write(tmp_path / "checkpoint-1", fail, step=1, launch=ONE, writes_files=True)
    with pytest.raises(CheckpointWriteError, match="the disk failed"):
        writer.write_alone(tmp_path / "checkpoint-1", fail, step=1)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_in_the_background_is_raised_where_it_is_awaited(tmp_path):
    """The error of a save is raised at once where a rank waits for the folder."""
    writer = CheckpointWriter()

    def fail(*_):
        raise OSError("the disk failed")

    def collect(folder, put):
        put(CheckpointFile(fail, None, folder))

    settings = {"step": 1, "launch": ONE, "writes_files": True, "must_finish": lambda: True}
    with pytest.raises(CheckpointWriteError, match="the disk failed"):
        writer.write_in_background(tmp_path / "checkpoint-1", collect, **settings)


def test_no_error_names_a_hidden_folder(monkeypatch, tmp_path):
    """An error while the folder is published names the checkpoint, and has the number and file of what failed."""

    def fail(staged, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(staged / "lightning.json"))

    monkeypatch.setattr(publish, "write_marker", fail)
    with pytest.raises(CheckpointWriteError) as caught:
        CheckpointWriter().write_alone(tmp_path / "checkpoint-1", lambda _: None, step=1)
    error, folder = caught.value, str(tmp_path / "checkpoint-1")
    assert (error.errno, error.filename) == (errno.ENOSPC, f"{folder}/lightning.json")
    assert str(error).startswith(f"`{folder}` cannot be written: [Errno 28] No space left on device: '{folder}/light")
    assert "partial-" not in str(error)


def test_writing_alone(tmp_path):
    """`write_alone` publishes a complete folder, and is no checkpoint of the run."""
    writer = CheckpointWriter()
    writer.write_alone(tmp_path / "a", lambda folder: torch.save(1, folder / "scaler.pt"), step=5)
    assert read_marker(tmp_path / "a").step == 5


def test_a_writer_can_be_pickled(tmp_path):
    """What it knows goes along; a thread under way, or its error, does not."""
    writer, go = CheckpointWriter(), threading.Event()
    writer.owned = OwnedCheckpoints("mine")
    writer.saver.start(go.wait)
    twin = pickle.loads(pickle.dumps(writer))
    assert twin.owned == OwnedCheckpoints("mine")
    twin.wait()
    go.set()
    writer.wait_here()
    assert isinstance(twin.saver, BackgroundTasks)


def test_states_of_callbacks_are_brought_up_to_date():
    """States of present callbacks are replaced; of several of one class there is a list. Others stay."""
    state = TrainerState(stateful_callbacks=[TrainerControl()])
    export_states(state.stateful_callbacks, [TrainerControl(should_log=True), object()])
    assert state.stateful_callbacks["TrainerControl"]["args"]["should_log"] is True
    export_states(kept := {"TrainerControl": [1, 2, 3], "Other": 1}, [TrainerControl(), TrainerControl()])
    assert kept == {"TrainerControl": [TrainerControl().state()] * 2, "Other": 1}


class Someone:
    def method(self):
        pass


def test_what_is_overridden():
    """A function defined elsewhere is; one of this package, bound or not, is not."""
    assert not is_overridden(CheckpointWriter.write)
    assert not is_overridden(CheckpointWriter().write)
    assert is_overridden(Someone().method)
    assert is_overridden(print)


def test_a_warning_is_given_once():
    """Each message is warned of once, in the name of the line that asks for it."""
    warn_once = WarnOnce()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for message in ("a", "b", "a"):
            warn_once(message)
    assert [(str(item.message), item.category) for item in caught] == [("a", HFCompatWarning), ("b", HFCompatWarning)]
    assert {item.filename for item in caught} == {__file__}
    assert [pickle.loads(pickle.dumps(warn_once))._messages] == [{"a", "b"}]


def test_a_warning_is_logged_once(caplog):
    """In the log too, word for word."""
    warn_once = WarnOnce()
    for message in ("100%", "100%"):
        warn_once.in_log(logging.getLogger("hf_compat.run"), message)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "100%")]


@pytest.mark.parametrize("alone", [False, True], ids=["a run", "a search"])
@pytest.mark.parametrize("to", ["folder", "nowhere"])
def test_a_link_to_a_folder(to, alone, tmp_path):
    """The folder that it leads to is written anew, its other files stay, and so does the link."""
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (tmp_path / "elsewhere" / "folder" / "theirs.txt").write_text("theirs")
    (tmp_path / "checkpoint-1").symlink_to(f"elsewhere/{to}")
    writer = CheckpointWriter()
    for text in ("first", "second"):

        def save(folder, put=None, *, text=text):
            (folder / "ours.txt").write_text(text)

        if alone:
            writer.write_alone(tmp_path / "checkpoint-1", save, step=1)
        else:
            write = writer.write_in_background if text == "second" else writer.write
            write(tmp_path / "checkpoint-1", save, step=1, launch=ONE, writes_files=True)
            writer.wait()
    assert (tmp_path / "checkpoint-1").is_symlink() == (to == "folder")
    assert (tmp_path / "checkpoint-1" / "ours.txt").read_text() == "second"
    theirs = {path.name for path in (tmp_path / "elsewhere" / "folder").iterdir()}
    assert theirs == {"theirs.txt", *(["lightning.json", "ours.txt"] if to == "folder" else [])}
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["folder"]


def test_what_a_killed_process_left_where_a_link_leads_to(tmp_path):
    """It is cleaned up with the folder of the link."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = tmp_path / "elsewhere" / f".folder.partial-{_host()}-{ended.pid}-0123abcd"
    for folder in (left, tmp_path / "elsewhere" / "folder", tmp_path / "out"):
        folder.mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-1").symlink_to(tmp_path / "elsewhere" / "folder")
    assert publish.clean_orphans(tmp_path / "out") == [left]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["folder"]
