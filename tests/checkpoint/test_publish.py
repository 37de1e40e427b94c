"""Checkpoints are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import trainer_utils as upstream

from hf_compat.checkpoint import finding, publish
from hf_compat.checkpoint.completeness import is_complete, read_marker, write_marker
from hf_compat.errors import CheckpointWriteError
from tests.support.checkpoints import small_checkpoint
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE, forked

# Writes checkpoint-<step> with <size> bytes of content; dies of SIGKILL right before file operation number <deadline>.
WRITER = """
import json, os, pathlib, signal, sys
from hf_compat.checkpoint import publish

final, step, deadline = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
count = 0

def watch(event, args):
    global count
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
        count += 1
        if count == deadline:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
with publish.staging(final, step=step) as folder:
    for name in ("first.bin", "second.bin"):
        (folder / name).write_bytes(bytes([step]) * 1000)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
print(count)
"""


def run_writer(final, step, deadline=0):
    script = final.parents[1] / "writer.py"
    script.write_text(WRITER)
    return forked(script, final, step, deadline)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def write(final, text, **options):
    with publish.staging(final, step=1, **options) as folder:
        (folder / "trainer_state.json").write_text("{}")
        (folder / "content.txt").write_text(text)


MANY_WRITES = """
import pathlib, sys
from hf_compat.checkpoint import publish

sys.stdin.read()  # until all are started
for _ in range(100):
    with publish.staging(pathlib.Path(sys.argv[1]), step=1) as folder:
        (folder / "trainer_state.json").write_text("{}")
        (folder / "content.txt").write_text(sys.argv[2])
"""


def test_several_runs_save_one_folder(tmp_path):
    """Each save of runs that write one folder at the same time succeeds; the last is there, and nothing else."""
    final = tmp_path / "checkpoint-1"
    command = [sys.executable, "-c", MANY_WRITES, str(final)]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, run], cwd=ROOT, **pipes) for run in ("first", "second", "third")]
    for writer in writers:
        writer.stdin.close()
        writer.stdin = None
    errors = [writer.communicate(timeout=PATIENCE)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], errors
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (final / "content.txt").read_text() in ("first", "second", "third")
    assert is_complete(final)


def test_staged_folder_becomes_the_checkpoint(tmp_path):
    """While it is written no listing sees it; afterwards it is complete and nothing else is left."""
    final = tmp_path / "run" / "checkpoint-3"
    with publish.staging(final, step=3, run_id="abc") as folder:
        assert folder.parent == final.parent
        (folder / "trainer_state.json").write_text("{}")
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_bytes(b"12345")
        assert upstream.get_last_checkpoint(str(final.parent)) is None
        assert list(final.parent.glob("checkpoint-*")) == finding.list_checkpoints(final.parent) == []
    assert names_in(final.parent) == ["checkpoint-3"]
    assert is_complete(final)
    marker = read_marker(final)
    assert (marker.step, marker.run_id) == (3, "abc")
    assert marker.files == {"sub/weights.bin": 5, "trainer_state.json": 2}


def test_checkpoint_has_the_usual_permissions(tmp_path):
    """The folder is as readable for others as any that the process makes."""
    write(tmp_path / "checkpoint-1", "text")
    (tmp_path / "usual").mkdir()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "checkpoint-1")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [KeyError("mine"), RuntimeError("mine"), KeyboardInterrupt()])
def test_failing_block_leaves_no_trace(tmp_path, error):
    """What goes wrong in the block comes out as it is, and the former checkpoint stays as it was."""
    final = tmp_path / "checkpoint-1"
    write(final, "former")

    def fail():
        with publish.staging(final, step=1) as folder:
            (folder / "content.txt").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (final / "content.txt").read_text() == "former"


def test_existing_checkpoint_is_replaced(tmp_path):
    """A second save of an update step replaces all that the first one wrote, and nothing else."""
    final = tmp_path / "checkpoint-1"
    with publish.staging(final, step=1) as folder:
        (folder / "content.txt").write_text("former")
        (folder / "states").mkdir()
        (folder / "states" / "stale.txt").write_text("stale")
    (final / "predictions.txt").write_text("mine")
    for text in ("new", "newer"):
        write(final, text)
        assert names_in(tmp_path) == ["checkpoint-1"]
        assert names_in(final) == ["content.txt", "lightning.json", "predictions.txt", "trainer_state.json"]
        assert (final / "content.txt").read_text() == text
    assert set(read_marker(final).files) == {"content.txt", "trainer_state.json"}


def test_files_put_there_beforehand_are_kept(tmp_path):
    """What a subclass wrote into the folder before the save, as it may with transformers, is in the checkpoint."""
    final = tmp_path / "checkpoint-1"
    (final / "extras").mkdir(parents=True)
    (final / "extras" / "mine.txt").write_text("mine")
    (final / "content.txt").write_text("beforehand")
    write(final, "new")
    assert (final / "extras" / "mine.txt").read_text() == "mine"
    assert (final / "content.txt").read_text() == "new"
    assert set(read_marker(final).files) == {"content.txt", "trainer_state.json"}
    shutil.rmtree(final / "extras")
    assert is_complete(final)


@pytest.mark.parametrize("marked", [False, True], ids=["of another program", "of ours"])
def test_whatever_lies_in_the_folder_is_kept(marked, tmp_path):
    """Links that point nowhere or to folders, sockets and unreadable files are moved as they are, none is opened."""
    final, elsewhere = tmp_path / "checkpoint-1", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs.txt").write_text("theirs")
    if marked:
        write(final, "former")
    final.mkdir(exist_ok=True)
    (final / "dangling").symlink_to("nowhere")
    (final / "folder").symlink_to(elsewhere)
    (final / "extras").mkdir()
    (final / "extras" / "dangling").symlink_to("nowhere")
    os.mkfifo(final / "pipe")
    (final / "unreadable").write_text("mine")
    (final / "unreadable").chmod(0)
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(final, os.O_RDONLY)  # the path of a socket must be short
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    write(final, "new")
    assert set(names_in(final)) == {
        *("content.txt", "lightning.json", "trainer_state.json"),
        *("dangling", "extras", "folder", "pipe", "socket", "unreadable"),
    }
    assert (final / "content.txt").read_text() == "new"
    assert os.readlink(final / "dangling") == os.readlink(final / "extras" / "dangling") == "nowhere"
    assert (final / "folder").resolve() == elsewhere
    assert stat.S_ISSOCK((final / "socket").stat().st_mode)
    assert stat.S_ISFIFO((final / "pipe").stat().st_mode)
    assert (elsewhere / "theirs.txt").read_text() == "theirs"
    assert names_in(tmp_path) == ["checkpoint-1", "elsewhere"]
    assert is_complete(final)


@pytest.mark.parametrize("to", ["nowhere", "elsewhere"])
def test_a_link_in_the_place_of_the_folder(to, tmp_path):
    """It is replaced, whether or not it points to a folder, which stays as it is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs.txt").write_text("theirs")
    (tmp_path / "checkpoint-1").symlink_to(tmp_path / to)
    write(tmp_path / "checkpoint-1", "new")
    assert not (tmp_path / "checkpoint-1").is_symlink()
    assert names_in(tmp_path / "checkpoint-1") == ["content.txt", "lightning.json", "trainer_state.json"]
    assert names_in(tmp_path / "elsewhere") == ["theirs.txt"]


def test_files_of_a_replaced_checkpoint_are_kept_after_a_kill(tmp_path, dead_pid):
    """A process killed before it could move them to the new folder: cleaning up moves them."""
    write(tmp_path / "checkpoint-1", "new")
    former = hidden(tmp_path, "replaced", pid=dead_pid)
    write_marker(former, step=1)
    (former / "notes.txt").write_text("mine")
    publish.clean_orphans(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (tmp_path / "checkpoint-1" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "checkpoint-1" / "optimizer.pt").exists()


def test_what_cannot_be_deleted_at_first(tmp_path, monkeypatch):
    """A folder that a failing disk does not let go is deleted later: before the next save, or at the end of the run."""
    write(tmp_path / "checkpoint-1", "former")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        write(tmp_path / "checkpoint-1", "new")
    assert len(names_in(tmp_path)) == 2
    publish.delete_leftovers()
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert (tmp_path / "checkpoint-1" / "content.txt").read_text() == "new"


def test_place_that_cannot_be_written(tmp_path):
    """A file where the folder or its parent should be: an error that names the folder and the cause."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match=r"file/checkpoint-1` cannot be written: .*File exists"):
        write(tmp_path / "file" / "checkpoint-1", "text")
    with pytest.raises(CheckpointWriteError, match="a file with that name already exists"):
        write(tmp_path / "file", "text")
    assert names_in(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_place(tmp_path):
    """A folder without write permission: an error that names it."""
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointWriteError, match="Permission denied"):
        write(tmp_path / "checkpoint-1", "text")
    tmp_path.chmod(0o700)


FULL_DISK = """
import errno, pathlib, resource, sys
import torch
from safetensors.torch import save_file
from hf_compat.checkpoint import publish
from hf_compat.errors import CheckpointWriteError

writers = {
    "torch": lambda folder: torch.save(torch.zeros(10_000), folder / "optimizer.pt"),
    "safetensors": lambda folder: save_file({"weight": torch.zeros(10_000)}, folder / "model.safetensors"),
    "python": lambda folder: (folder / "vocab.txt").write_text("x" * 40_000),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    with publish.staging(sys.argv[1], step=2) as folder:
        writers[sys.argv[2]](folder)
except CheckpointWriteError as error:
    print(errno.errorcode[error.errno], error)
"""


@pytest.mark.parametrize(
    "library",
    ["torch", pytest.param("safetensors", marks=pytest.mark.slow), pytest.param("python", marks=pytest.mark.slow)],
)
def test_full_disk(tmp_path, library):
    """When no more can be written, the error has the reason and the folder; the former checkpoint is still there."""
    former, final = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    write(former, "former")
    command = [sys.executable, "-c", FULL_DISK, str(final), library]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.startswith(f"EFBIG `{final}` cannot be written: ")
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert is_complete(former)


def state_of(folder):
    """The step that the contents of a checkpoint speak of; they have to agree."""
    state = (folder / "trainer_state.json").read_text()
    steps = {(folder / name).read_bytes() for name in ("first.bin", "second.bin")}
    (content,) = steps
    assert content == content[:1] * 1000
    assert state == f'{{"global_step": {content[0]}}}'
    return content[0]


@pytest.mark.slow
@pytest.mark.parametrize("same_name", [pytest.param(False, id="new name"), pytest.param(True, id="replacing")])
def test_kill_at_every_file_operation(tmp_path, same_name):
    """A process killed before any of its file operations leaves the former checkpoint or the new one, whole."""
    name = "checkpoint-1" if same_name else "checkpoint-2"
    count = int(run_writer(tmp_path / "count" / name, 2).output)
    outcomes = []
    for deadline in range(1, count + 20):
        folder = tmp_path / str(deadline)
        assert run_writer(folder / "checkpoint-1", 1).code == 0
        done = run_writer(folder / name, 2, deadline)
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL
        publish.clean_orphans(folder)
        assert set(names_in(folder)) <= {"checkpoint-1", "checkpoint-2"}
        outcomes.append(state_of(Path(finding.get_last_checkpoint(folder))))
    else:
        pytest.fail("the writer never finished")
    # First the former one survives, then the new one; never again the former.
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}


def hidden(folder, kind, host=None, pid=None, token="00000000"):
    host = publish._host() if host is None else host
    path = folder / f".checkpoint-1.{kind}-{host}-{pid or os.getpid()}-{token}"
    return small_checkpoint(path)


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_orphans_are_of_dead_processes_only(tmp_path, dead_pid):
    """What a living process or another host's is writing is left alone."""
    kept = [hidden(tmp_path, "partial", pid=os.getppid()), hidden(tmp_path, "partial", host="else-where", pid=dead_pid)]
    orphans = [hidden(tmp_path, kind, pid=dead_pid) for kind in ("partial", "deleted", "pushed")]
    with publish.staging(tmp_path / "checkpoint-5", step=5) as own:
        assert sorted(publish.clean_orphans(tmp_path)) == sorted(orphans)
        assert names_in(tmp_path) == sorted([own.name, *(path.name for path in kept)])


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        pytest.param(["replaced"], "former", id="only the former one"),
        pytest.param(["partial", "replaced"], "former", id="the new one is not finished"),
        pytest.param(["marked partial", "replaced"], "new", id="the new one is finished"),
        pytest.param(["deleted"], None, id="given up"),
    ],
)
def test_checkpoint_without_its_name(tmp_path, dead_pid, kinds, left):
    """A process killed between two renames left a checkpoint nameless: the newest complete one gets the name."""
    for kind in kinds:
        path = hidden(tmp_path, kind.removeprefix("marked "), pid=dead_pid)
        (path / "content.txt").write_text("former" if kind == "replaced" else "new")
        if kind.startswith("marked"):
            write_marker(path, step=1)
    publish.clean_orphans(tmp_path)
    assert names_in(tmp_path) == ([] if left is None else ["checkpoint-1"])
    assert left is None or (tmp_path / "checkpoint-1" / "content.txt").read_text() == left


def test_two_that_recover_one_checkpoint(tmp_path, dead_pid, monkeypatch):
    """Another node that shares the folder gives it its name first, once both have seen that it is complete."""
    orphan = hidden(tmp_path, "partial", pid=dead_pid)
    write_marker(orphan, step=1)
    monkeypatch.setattr(publish, "_is_ready", lambda found: bool(found.path.rename(found.final)))
    publish.clean_orphans(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-1"]


def test_orphan_under_our_own_process_id(tmp_path):
    """A container's first process has the same id each time: what this very process did not begin is an orphan."""
    orphan = hidden(tmp_path, "partial")
    assert publish.clean_orphans(tmp_path) == [orphan]
    assert names_in(tmp_path) == []


def test_no_folder_no_orphans(tmp_path):
    """Before the first save there is nothing to clean."""
    assert publish.clean_orphans(tmp_path / "nowhere") == []


def test_host_name_is_fit_for_a_file_name():
    """Nothing in a host's name can be taken for a separator."""
    assert set(publish._host()) - set("._") <= {char for char in socket.gethostname() if char.isalnum()}


def test_delete_folder(tmp_path):
    """Deleting leaves nothing; a link is not followed."""
    folder = small_checkpoint(tmp_path / "elsewhere")
    (tmp_path / "checkpoint-1").symlink_to(folder)
    with pytest.raises(OSError, match="is a link"):
        publish.delete_folder(tmp_path / "checkpoint-1")
    (tmp_path / "checkpoint-1").unlink()
    publish.delete_folder(folder)
    assert names_in(tmp_path) == []


def create_file(target, meanwhile):
    with publish.creating_file(target) as draft:
        draft.write_text("ours")
        meanwhile()


def create_folder(target, meanwhile):
    with publish.creating_folder(target, step=None) as staged:
        (staged / "content").write_text("ours")
        meanwhile()


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_what_appears_meanwhile_is_not_replaced(links, tmp_path, monkeypatch):
    """A new file or folder never takes the place of one that someone else made while it was written."""

    def refuse(*_):
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    file, folder = tmp_path / "file", tmp_path / "folder"
    with pytest.raises(CheckpointWriteError, match="a file with that name already exists"):
        create_file(file, lambda: file.write_text("theirs"))
    with pytest.raises(CheckpointWriteError, match="cannot be written"):
        create_folder(folder, lambda: (folder.mkdir(), (folder / "content").write_text("theirs")))
    assert file.read_text() == (folder / "content").read_text() == "theirs"
    create_file(tmp_path / "new", lambda: None)
    assert (tmp_path / "new").read_text() == "ours"
    assert names_in(tmp_path) == ["file", "folder", "new"]
