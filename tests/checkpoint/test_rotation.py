"""Which checkpoints `save_total_limit` deletes: those that transformers deletes, and never another run's."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
from packaging.version import Version
from transformers import Trainer, trainer_utils as upstream

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.checkpoint.background import BackgroundTasks
from hf_compat.checkpoint.completeness import write_marker
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.rotation import OwnedCheckpoints, beyond_limit, by_age, delete_all_but_best, rotate
from tests.support.checkpoints import small_checkpoint
from tests.support.processes import PATIENCE

# The default resolution, by the installed transformers.
PROTECTS_NEWEST = resolve_semantics().rotation_protects_newest
HAS_FUNCTION = Version(transformers.__version__) >= Version("5.2")

pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")


def make(folder, steps, *, newest_first=False, spread=10.0, run_id=None, start=1e9):
    """Write complete checkpoints, ``spread`` seconds apart, the first one at ``start`` seconds since 1970."""
    for position, step in enumerate(steps):
        path = small_checkpoint(folder / f"checkpoint-{step}")
        if run_id is not None:
            write_marker(path, step=step, run_id=run_id)
        time = start + (-position if newest_first else position) * spread
        os.utime(path, (time, time))
    return folder


def steps_in(folder):
    return [item.step for item in list_checkpoints(folder)]


def rotate_upstream(folder, limit, best):
    if HAS_FUNCTION:
        upstream.rotate_checkpoints(str(folder), limit, best_model_checkpoint=best, use_mtime=True)
        return
    stand_in = SimpleNamespace(
        args=SimpleNamespace(save_total_limit=limit), state=SimpleNamespace(best_model_checkpoint=best)
    )
    stand_in._sorted_checkpoints = lambda **options: Trainer._sorted_checkpoints(stand_in, **options)
    Trainer._rotate_checkpoints(stand_in, use_mtime=True, output_dir=str(folder))


@pytest.mark.parametrize("order", ["by step", "newest first", "within a second"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("best", [None, 2, 4, 9, 10, "gone"])
def test_deletes_what_upstream_deletes(order, limit, best, tmp_path):
    """For every order of the files' times, limit and best checkpoint, the installed transformers leaves the same."""
    times = {"newest_first": order == "newest first", "spread": 0.01 if order == "within a second" else 10.0}
    ours, theirs = (make(tmp_path / side, (2, 4, 9, 10), **times) for side in ("ours", "theirs"))
    best_in = (lambda folder: None) if best is None else (lambda folder: str(folder / f"checkpoint-{best}"))
    rotate_upstream(theirs, limit, best_in(theirs))
    rotate(ours, limit=limit, best=best_in(ours), protects_newest=PROTECTS_NEWEST)
    assert steps_in(ours) == steps_in(theirs)


@pytest.mark.parametrize(
    ("protects_newest", "limit", "best", "expected"),
    [
        pytest.param(True, 4, None, [], id="as many as allowed"),
        pytest.param(True, 2, None, [1, 2], id="oldest first"),
        pytest.param(True, 2, 1, [2, 3], id="the best is old"),
        pytest.param(True, 1, 4, [1, 2, 3], id="the best is the newest"),
        pytest.param(True, 1, 2, [1, 3], id="two under a limit of one"),
        pytest.param(True, 1, 9, [1, 2], id="the best is elsewhere"),
        pytest.param(False, 4, None, [], id="before 5.2: as many as allowed"),
        pytest.param(False, 2, None, [1, 2], id="before 5.2: oldest first"),
        pytest.param(False, 2, 1, [2, 3], id="before 5.2: the best is old"),
        pytest.param(False, 1, 4, [1, 2, 3], id="before 5.2: the best is the newest"),
        pytest.param(False, 1, 2, [1, 3], id="before 5.2: two under a limit of one"),
        pytest.param(False, 1, 9, [1, 2], id="before 5.2: the best is elsewhere"),
    ],
)
def test_victims(protects_newest, limit, best, expected):
    """Of checkpoints 1 to 4, oldest first, these go."""
    checkpoints = [Path(f"run/checkpoint-{step}") for step in (1, 2, 3, 4)]
    chosen = None if best is None else f"run/checkpoint-{best}"
    found = beyond_limit(checkpoints, limit, chosen, protects_newest=protects_newest)
    assert [path.name for path in found] == [f"checkpoint-{step}" for step in expected]


def test_best_is_known_under_any_path(tmp_path, monkeypatch):
    """A best checkpoint written as a relative path is the one listed by its absolute path."""
    make(tmp_path, (1, 2, 3))
    monkeypatch.chdir(tmp_path)
    rotate(tmp_path, limit=1, best="./checkpoint-1", protects_newest=True)
    assert steps_in(tmp_path) == [1, 3]


def test_by_age(tmp_path):
    """File times decide, unless all lie within a second: then the update steps do."""
    make(tmp_path, (3, 20, 100), newest_first=True)
    assert [path.name for path in by_age(list_checkpoints(tmp_path))] == [f"checkpoint-{n}" for n in (100, 20, 3)]
    make(tmp_path, (3, 20, 100), newest_first=True, spread=0.1)
    assert [path.name for path in by_age(list_checkpoints(tmp_path))] == [f"checkpoint-{n}" for n in (3, 20, 100)]


def test_incomplete_checkpoints_neither_count_nor_go(tmp_path):
    """A half-written folder of transformers' is not taken for one of the checkpoints to keep."""
    make(tmp_path, (1, 2, 3))
    (tmp_path / "checkpoint-3" / "trainer_state.json").unlink()
    rotate(tmp_path, limit=2, best=None, protects_newest=True)
    assert steps_in(tmp_path) == [1, 2, 3]
    rotate(tmp_path, limit=1, best=None, protects_newest=True)
    assert steps_in(tmp_path) == [2, 3]


def test_deleting_leaves_nothing_behind(tmp_path):
    """Not even a hidden folder."""
    make(tmp_path, (1, 2))
    rotate(tmp_path, limit=1, best=None, protects_newest=True)
    assert os.listdir(tmp_path) == ["checkpoint-2"]


class TestFinishedRun:
    """What is left of a finished run under a limit of one."""

    @pytest.mark.parametrize(("best", "left"), [(1, [1]), (2, [2]), (3, [3])])
    def test_the_best_alone(self, best, left, tmp_path):
        """Also the newest checkpoint goes."""
        make(tmp_path, (1, 2, 3))
        delete_all_but_best(tmp_path, best=tmp_path / f"checkpoint-{best}")
        assert steps_in(tmp_path) == left

    def test_nothing_goes_for_a_best_that_is_lost(self, tmp_path):
        """Without its state, or gone, the best checkpoint cannot take the newest one's place."""
        make(tmp_path, (1, 2))
        (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
        delete_all_but_best(tmp_path, best=tmp_path / "checkpoint-1")
        delete_all_but_best(tmp_path, best=tmp_path / "checkpoint-7")
        assert steps_in(tmp_path) == [1, 2]

    def test_other_runs_checkpoints_stay(self, tmp_path):
        """Only what the run wrote goes; the best one may be in another folder."""
        owned = OwnedCheckpoints.start()
        make(tmp_path / "now", (1, 2), run_id="another")
        make(tmp_path / "now", (3, 4), run_id=owned.run_id)
        make(tmp_path / "before", (2,), run_id=owned.run_id)
        delete_all_but_best(tmp_path / "now", best=tmp_path / "before" / "checkpoint-2", owned=owned)
        assert steps_in(tmp_path / "now") == [1, 2]
        assert steps_in(tmp_path / "before") == [2]


def test_folder_that_cannot_be_deleted(tmp_path, caplog):
    """It stays, a warning says so, and training goes on."""
    make(tmp_path, (2, 3))
    (tmp_path / "checkpoint-1").symlink_to(make(tmp_path / "elsewhere", (1,), spread=0) / "checkpoint-1")
    os.utime(tmp_path / "elsewhere" / "checkpoint-1", (1.0, 1.0))
    with caplog.at_level(logging.WARNING):
        rotate(tmp_path, limit=1, best=None, protects_newest=True)
    assert steps_in(tmp_path) == [1, 3]
    assert "cannot be deleted" in caplog.text


def test_files_go_in_the_background(tmp_path, caplog, monkeypatch):
    """The names are gone at once, the files once the thread has removed them; it warns of what it cannot remove."""
    make(tmp_path, (1, 2, 3))
    may_remove, remover, rmtree = threading.Event(), BackgroundTasks(), shutil.rmtree

    def held(path):
        assert may_remove.wait(PATIENCE)
        if "checkpoint-1." in path.name:
            raise PermissionError(errno.EACCES, "not allowed", str(path))
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", held)
    with caplog.at_level(logging.WARNING):
        rotate(tmp_path, limit=1, best=None, protects_newest=True, remover=remover)
        assert steps_in(tmp_path) == [3]
        assert len([*tmp_path.iterdir()]) == 3
        may_remove.set()
        remover.wait()
    assert len([*tmp_path.iterdir()]) == 2
    assert "checkpoint-1 cannot be deleted" in caplog.text
    assert ".deleted-" not in caplog.text


class TestLedger:
    """A run deletes only what it, or the run it goes on from, wrote."""

    def test_other_runs_checkpoints_stay(self, tmp_path):
        """Another run's folders, marked or not, neither count nor go."""
        owned = OwnedCheckpoints.start()
        make(tmp_path, (1, 2), run_id="another")
        make(tmp_path, (3,))
        make(tmp_path, (10, 11, 12), run_id=owned.run_id)
        rotate(tmp_path, limit=1, best=None, protects_newest=True, owned=owned)
        assert steps_in(tmp_path) == [1, 2, 3, 12]

    def test_incomplete_checkpoints_of_the_run_go(self, tmp_path):
        """What somebody deleted files of counts and goes as any other; another run's neither counts nor goes."""
        owned = OwnedCheckpoints.start()
        make(tmp_path, (1,), run_id="another")
        make(tmp_path, (10, 11, 12), run_id=owned.run_id)
        for step in (1, 10, 11):
            (tmp_path / f"checkpoint-{step}" / "optimizer.pt").unlink()
            os.utime(tmp_path / f"checkpoint-{step}", (step, step))
        rotate(tmp_path, limit=2, best=None, protects_newest=True, owned=owned)
        assert steps_in(tmp_path) == [1, 11, 12]

    def test_no_two_runs_are_one(self):
        """Each start is a run of its own."""
        assert OwnedCheckpoints.start().run_id != OwnedCheckpoints.start().run_id

    def test_resumed_run_goes_on_with_its_checkpoints(self, tmp_path):
        """A run that goes on from one of ours is the same run."""
        make(tmp_path, (1, 2), run_id="first")
        make(tmp_path, (3,), run_id="another")
        owned = OwnedCheckpoints.resume(tmp_path / "checkpoint-2")
        assert owned.run_id == "first"
        make(tmp_path, (4,), run_id=owned.run_id, start=1.1e9)
        rotate(tmp_path, limit=1, best=None, protects_newest=True, owned=owned)
        assert steps_in(tmp_path) == [3, 4]

    def test_resumed_from_transformers(self, tmp_path):
        """A run that goes on from a folder of transformers' takes over those beside it, and none written later."""
        make(tmp_path, (1, 2))
        owned = OwnedCheckpoints.resume(tmp_path / "checkpoint-2")
        make(tmp_path, (3,))
        make(tmp_path, (4,), run_id=owned.run_id, start=1.1e9)
        rotate(tmp_path, limit=1, best=None, protects_newest=True, owned=owned)
        assert steps_in(tmp_path) == [3, 4]

    def test_damaged_marker_is_nobodys(self, tmp_path):
        """A checkpoint whose marker cannot be read is not taken over."""
        make(tmp_path, (1, 2))
        shutil.copy(tmp_path / "checkpoint-1" / "optimizer.pt", tmp_path / "checkpoint-1" / "lightning.json")
        owned = OwnedCheckpoints.resume(tmp_path / "checkpoint-2")
        assert owned.adopted == {tmp_path / "checkpoint-2"}
