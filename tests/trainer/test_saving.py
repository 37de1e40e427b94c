"""Checkpoints that callbacks and overrides change after a save are found, resumed and rotated as transformers' are."""

import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint as upstreams_get_last_checkpoint

import hf_compat
from hf_compat.checkpoint.completeness import is_complete, read_marker
from hf_compat.checkpoint.finding import get_last_checkpoint
from hf_compat.errors import CheckpointError, CheckpointWriteError
from hf_compat.trainer.run import current_run
from tests.support import trainers
from tests.support.helpers import ListDataset, gpt2, token_rows
from tests.support.trainers import arguments

pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")
LIBRARIES = {
    "upstream": (transformers, upstreams_get_last_checkpoint),
    "ours": (hf_compat, get_last_checkpoint),
}
BACKGROUND = [pytest.param(False, id="synchronously"), pytest.param(True, id="in the background")]


def new_trainer(library, folder, callbacks=(), kind=None, **fields):
    torch.manual_seed(0)
    settings = {"max_steps": 4, "save_steps": 1, "save_total_limit": 2, "per_device_train_batch_size": 2}
    return trainers.new_trainer(folder, kind, library=library, rows=16, callbacks=callbacks, **settings | fields)


def delete_states(folder):
    (folder / "optimizer.pt").unlink()
    (folder / "scheduler.pt").unlink()


def write_other_weights(folder):
    (folder / "model.safetensors").rename(folder / "whole.safetensors")
    (folder / "adapter_model").mkdir()
    torch.save({"weight": torch.ones(3)}, folder / "adapter_model" / "adapter_model.bin")


def keep_weights_and_state(folder):
    for path in folder.iterdir():
        if path.name not in ("model.safetensors", "trainer_state.json"):
            path.unlink()


CHANGES = [delete_states, write_other_weights, keep_weights_and_state]


def changing_callback(library, change):
    class Changes(library.TrainerCallback):
        def on_save(self, args, state, control, **_):
            change(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    return Changes()


def changing_trainer(library, change):
    class Changes(library.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            super()._save_checkpoint(*args, **kwargs)
            change(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")

    return Changes


def run_changed(side, folder, change, *, by, **fields):
    """Train with a save a step that ``change`` changes; return what is left, and which checkpoint is the last."""
    library, find = LIBRARIES[side]
    callbacks = [changing_callback(library, change)] if by == "on_save" else []
    kind = changing_trainer(library, change) if by == "_save_checkpoint" else None
    new_trainer(library, folder, callbacks, kind, **fields).train()
    contents = {
        path.name: sorted(each.name for each in path.iterdir() if not each.name.startswith("lightning."))
        for path in folder.iterdir()
    }
    return contents, os.path.relpath(find(str(folder)) or "", folder)


@pytest.mark.parametrize("by", ["on_save", "_save_checkpoint"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("background", BACKGROUND)
def test_changed_checkpoints_are_found_and_rotated(background, change, by, tmp_path):
    """The newest two are left and the last one is found, whatever files it has."""
    expected = run_changed("upstream", tmp_path / "theirs", change, by=by)
    fields = {"save_async": True} if background else {}
    assert run_changed("ours", tmp_path / "ours", change, by=by, **fields) == expected
    assert expected[1] == "checkpoint-4"
    assert all(is_complete(path) for path in (tmp_path / "ours").iterdir())


@pytest.mark.parametrize(("change", "warns"), [(delete_states, True), (keep_weights_and_state, False)])
def test_changed_checkpoints_are_resumed(change, warns, tmp_path, caplog):
    """`resume_from_checkpoint=True` goes on from the last one, with the weights that upstream's run ends with."""
    ends = []
    for side, (library, _) in LIBRARIES.items():
        new_trainer(library, tmp_path / side, [changing_callback(library, change)]).train()
        trainer = new_trainer(library, tmp_path / side, max_steps=6)
        trainer.train(resume_from_checkpoint=True)
        left = sorted(path.name for path in (tmp_path / side).iterdir())
        ends.append((trainer.state.global_step, left, trainer.model.state_dict()))
    told = "checkpoint-4`: the checkpoint is incomplete or was modified after saving: `optimizer.pt` is missing."
    assert (told in caplog.text) == warns
    (step, left, their_weights), (our_step, our_left, our_weights) = ends
    assert (our_step, our_left) == (step, left) == (6, ["checkpoint-5", "checkpoint-6"])
    assert all(torch.equal(value, our_weights[name]) for name, value in their_weights.items())


def test_a_foreign_file_that_comes_and_goes(tmp_path):
    """What somebody put into the folder before the save, and deletes after the run, is not part of the checkpoint."""
    found = []
    for side, (library, find) in LIBRARIES.items():
        sentinel = tmp_path / side / "checkpoint-1" / "checkpoint-is-incomplete.txt"
        sentinel.parent.mkdir(parents=True)
        sentinel.write_text("written by a script beside the run")
        new_trainer(library, tmp_path / side, [changing_callback(library, delete_states)], max_steps=1).train()
        sentinel.unlink()
        found.append(os.path.relpath(find(str(tmp_path / side)) or "", tmp_path / side))
    assert found == ["checkpoint-1", "checkpoint-1"]


def test_files_in_a_checkpoint_that_is_saved_again(tmp_path):
    """What a person has put into the folder is still there."""
    for side, (library, _) in LIBRARIES.items():
        new_trainer(library, tmp_path / side).train()
        predictions = tmp_path / side / "checkpoint-4" / "predictions.txt"
        predictions.write_text("mine")
        new_trainer(library, tmp_path / side).train(resume_from_checkpoint=str(tmp_path / side / "checkpoint-3"))
        assert predictions.read_text() == "mine"


def test_a_kill_while_a_checkpoint_is_changed(tmp_path):
    """The checkpoint that was being changed is found and resumed, without the states that are gone."""

    class Killed(BaseException):
        """Stands for the end of the process."""

    def change(folder):
        delete_states(folder)
        if folder.name == "checkpoint-3":
            raise Killed

    ends = []
    for side, (library, find) in LIBRARIES.items():
        with pytest.raises(Killed):
            new_trainer(library, tmp_path / side, [changing_callback(library, change)]).train()
        assert find(str(tmp_path / side)) == str(tmp_path / side / "checkpoint-3")
        trainer = new_trainer(library, tmp_path / side)
        trainer.train(resume_from_checkpoint=True)
        ends.append(trainer.model.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_checkpoint_without_the_state_of_its_run(tmp_path):
    """It is rotated as with transformers, but not found: neither library can resume from it."""

    def change(folder):
        (folder / "trainer_state.json").unlink()

    left = []
    for side, (library, _) in LIBRARIES.items():
        new_trainer(library, tmp_path / side, [changing_callback(library, change)]).train()
        left.append(sorted(os.listdir(tmp_path / side)))
        with pytest.raises((CheckpointError, FileNotFoundError), match=r"trainer_state\.json|No valid checkpoint"):
            new_trainer(library, tmp_path / side).train(resume_from_checkpoint=True)
    assert left == [["checkpoint-3", "checkpoint-4"]] * 2
    assert get_last_checkpoint(tmp_path / "ours") is None


HARMS = [
    ("model.safetensors", Path.unlink, True),
    ("trainer_state.json", Path.unlink, True),
    ("optimizer.pt", Path.unlink, False),
    ("training_args.bin", Path.unlink, False),
    *[
        (name, lambda path: path.write_bytes(b""), True)
        for name in ("model.safetensors", "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    ],
]


def test_an_incomplete_checkpoint_by_its_path(tmp_path):
    """It is an error of transformers' class, and a note says what is incomplete and how the newest whole one is had."""
    for library in LIBRARIES.values():
        new_trainer(library[0], tmp_path / library[0].__name__, max_steps=2).train()
    for name, harm, fails in HARMS:
        raised = {}
        for library, _ in LIBRARIES.values():
            folder = tmp_path / library.__name__
            shutil.copytree(folder / "checkpoint-1", harmed := folder / "harmed" / "checkpoint-1", dirs_exist_ok=True)
            harm(harmed / name)
            with nullcontext() if not fails else pytest.raises(Exception) as raised[library]:  # noqa: PT011 - compared
                new_trainer(library, folder, max_steps=2).train(resume_from_checkpoint=str(harmed))
        if fails:
            theirs, ours = (raised[library].value for library, _ in LIBRARIES.values())
            assert isinstance(ours, CheckpointError)
            assert isinstance(ours, type(theirs)) or type(theirs).__name__ == "SafetensorError"
            assert re.search(rf"`resume_from_checkpoint=.*{name}.* Pass 'auto', or True", ours.__notes__[-1])


def test_damage_after_the_changes_is_found(tmp_path):
    """A file that is lost later, or cut short, still makes the checkpoint incomplete."""
    new_trainer(hf_compat, tmp_path, [changing_callback(hf_compat, write_other_weights)]).train()
    os.truncate(tmp_path / "checkpoint-4" / "adapter_model" / "adapter_model.bin", 9)
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-3")


def test_a_checkpoint_of_another_run_is_not_touched(tmp_path):
    """An override that writes a folder of its own gets no marker of ours, and an older save's is left alone."""

    class Own(hf_compat.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            if self.state.global_step == 1:
                super()._save_checkpoint(*args, **kwargs)
            else:
                (Path(self.args.output_dir) / "checkpoint-1" / "optimizer.pt").unlink(missing_ok=True)
                shutil.copytree(Path(self.args.output_dir) / "checkpoint-1", folder)

    new_trainer(hf_compat, tmp_path, kind=Own, max_steps=2).train()
    assert "optimizer.pt" in read_marker(tmp_path / "checkpoint-1").files
    assert read_marker(tmp_path / "checkpoint-2").step == 1


@pytest.mark.parametrize("overrides", ["_save", "save_model", "_save_optimizer_and_scheduler"])
def test_an_override_finds_the_weights_whole(overrides, tmp_path):
    """They are there when it has called ours, and when it is called after them."""
    found = []

    class Overridden(hf_compat.Trainer):
        pass

    def override(self, folder, *args, **kwargs):
        found.append(Path(folder, "model.safetensors").is_file())
        getattr(super(Overridden, self), overrides)(folder, *args, **kwargs)
        found.append(Path(folder, "model.safetensors").is_file())

    setattr(Overridden, overrides, override)
    args = arguments(tmp_path, max_steps=1)
    Overridden(gpt2(), args, train_dataset=ListDataset(token_rows(8, shortest=4, longest=4))).train()
    assert found == ([True, True] if overrides == "_save_optimizer_and_scheduler" else [False, True])
    assert is_complete(tmp_path / "checkpoint-1")


class Waits(hf_compat.TrainerCallback):
    """Has each save in the background awaited."""

    def on_save(self, args, state, control, **_):
        """Do nothing."""


@pytest.mark.parametrize("background", BACKGROUND)
def test_which_update_step_is_saved(background, tmp_path, monkeypatch):
    """A preempted run does not save a step twice: that of the last checkpoint, unless it could not be written."""
    trainer = new_trainer(hf_compat, tmp_path, callbacks=[Waits()], save_async=background)
    trainer.train()
    saving = current_run(trainer).saving
    assert not saving.has_saved  # since the epoch has ended, an evaluation may have followed
    saving.write_for_search(tmp_path / "trial")
    assert not saving.has_saved
    trainer._save_checkpoint(trainer.model, trial=None)
    assert saving.has_saved
    saving.note_change()

    def fail(*_, **__):
        raise OSError("the disk failed")

    monkeypatch.setattr("hf_compat.checkpoint.publish.write_marker", fail)
    with pytest.raises(CheckpointWriteError, match="the disk failed"):
        trainer._save_checkpoint(trainer.model, trial=None)
    assert not saving.has_saved


def test_a_checkpoint_that_cannot_be_rotated_is_saved(tmp_path):
    """What follows a save may fail: the update step is saved all the same."""

    class Fails(hf_compat.Trainer):
        def _rotate_checkpoints(self, use_mtime=False, output_dir=None):
            raise RuntimeError("not now")

    trainer = new_trainer(hf_compat, tmp_path, kind=Fails)
    with pytest.raises(RuntimeError, match="not now"):
        trainer.train()
    assert current_run(trainer).saving.has_saved
