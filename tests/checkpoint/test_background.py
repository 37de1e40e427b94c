"""Saving in the background writes what saving at once writes, and hides no error."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.checkpoint.background import (
    ENVIRONMENT_VARIABLE,
    BackgroundTasks,
    CheckpointFile,
    HostBuffers,
    Snapshot,
    as_it_is,
    shell_of,
    written_side_by_side,
)
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.errors import CheckpointWriteError
from tests.scripts.crash_script import Model, Rows
from tests.support.held_writer import HeldWriter
from tests.support.processes import PATIENCE

TIMES = ("training_args.bin", "lightning.json")
"""Files that hold the time of the start or a random name of the run."""


def saving_trainer(folder, trainer_class=Trainer, model=None, callbacks=(), **settings):
    """A run of six update steps with a checkpoint every second one."""
    torch.manual_seed(0)
    arguments = {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "learning_rate": 0.01,
        "per_device_train_batch_size": 2,
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 3,
        **settings,
    }
    args = TrainingArguments(str(folder), **arguments)
    return trainer_class(
        model() if model else Model(8),
        args,
        train_dataset=Rows(12, 1),
        eval_dataset=Rows(4, 2),
        callbacks=list(callbacks),
    )


def files(folder):
    """Every byte of every checkpoint but for times."""
    found = {}
    for checkpoint in list_checkpoints(folder):
        for path in checkpoint.path.rglob("*"):
            if path.is_file() and path.name not in TIMES:
                found[str(path.relative_to(folder))] = path.read_bytes()
            if path.name == "trainer_state.json":
                state = json.loads(path.read_text())
                kept = {name: value for name, value in state.items() if name not in ("log_history",)}
                kept["best_model_checkpoint"] = str(kept["best_model_checkpoint"]).replace(str(folder), "")
                found[str(path.relative_to(folder))] = kept
    return found


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)  # its head and its embeddings share their weights


class Texts(Rows):
    def __getitem__(self, index):
        tokens = (self.values[index].abs() * 5).long() % 20
        return {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("kind", ["plain", "pickled", "tied"])
def test_same_files(tmp_path, monkeypatch, kind):
    """In the background the same bytes are written as at once, and the same checkpoints are kept."""
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 2}
    settings["save_safetensors"] = kind != "pickled"
    trainers = {}
    for name in ("at once", "later"):
        if name == "later":
            monkeypatch.setenv(ENVIRONMENT_VARIABLE, "1")
        trainer = saving_trainer(tmp_path / name, model=gpt2 if kind == "tied" else None, **settings)
        if kind == "tied":
            trainer.train_dataset, trainer.eval_dataset = Texts(12, 1), Texts(4, 2)
        trainer.train()
        trainers[name] = trainer
    assert [item.step for item in list_checkpoints(tmp_path / "later")][-1] == 6
    assert files(tmp_path / "later") == files(tmp_path / "at once")
    # With best-model loading the weights left behind are those of a checkpoint that had to be waited for.
    left = [[*trainer.model.state_dict().values()] for trainer in trainers.values()]
    assert all(torch.equal(one, other) for one, other in zip(*left, strict=True))


class Looks(TrainerCallback):
    """Remembers which checkpoints were there."""

    def __init__(self):
        self.seen = {}

    def on_step_begin(self, args, state, control, **kwargs):
        self.seen[state.global_step] = [item.step for item in list_checkpoints(args.output_dir)]

    def on_train_end(self, args, state, control, **kwargs):
        self.seen["end"] = [item.step for item in list_checkpoints(args.output_dir)]


def test_training_goes_on_meanwhile(tmp_path):
    """Update steps are made while a checkpoint is written; the next save waits for it, and so does the end."""
    looks = Looks()
    trainer = saving_trainer(tmp_path, callbacks=[looks], save_async=True)
    trainer.checkpoint_writer = HeldWriter()
    trainer.train()
    assert looks.seen == {0: [], 1: [], 2: [], 3: [], 4: [2], 5: [2], "end": [2, 4, 6]}
    assert trainer.checkpoint_writer.most == 1


class Stops(TrainerCallback):
    """Interrupts the run after a save."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt


def test_an_interrupted_run_leaves_the_checkpoint_under_way(tmp_path):
    """What ends a run does not lose the checkpoint that is being written."""
    trainer = saving_trainer(tmp_path, callbacks=[Stops()], save_async=True)
    trainer.checkpoint_writer = HeldWriter()
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [item.step for item in list_checkpoints(tmp_path)] == [2, 4]


class BrokenWriter(CheckpointWriter):
    """A disk that fails while the first checkpoint is written."""

    saves = 0

    def _publish(self, publication, snapshot, folder, then):
        self.saves += 1
        if self.saves == 1:
            snapshot.files.append(CheckpointFile(self._fail, None, folder))
        super()._publish(publication, snapshot, folder, then)

    def _fail(self, *_):
        raise OSError("the disk failed")


class Broken(Trainer):
    """Saves to that disk."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.checkpoint_writer = BrokenWriter()


@pytest.mark.parametrize("save_steps", [pytest.param(2, id="next save"), pytest.param(6, id="end")])
def test_errors_surface(tmp_path, save_steps):
    """What goes wrong in the background ends the run at the next save, or at the end."""
    trainer = saving_trainer(tmp_path, Broken, save_async=True, save_steps=save_steps)
    with pytest.raises(CheckpointWriteError, match="the disk failed"):
        trainer.train()
    assert trainer.state.global_step == min(2 * save_steps, 6)
    assert list_checkpoints(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == []


def test_errors_are_survived_if_asked(tmp_path, caplog):
    """With `on_save_error="warn"` the error is logged, and the other checkpoints are written."""
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    trainer = saving_trainer(tmp_path, Broken, save_async=True, on_save_error="warn", **settings)
    with caplog.at_level(logging.ERROR):
        trainer.train()
    assert "the disk failed" in caplog.text
    assert [item.step for item in list_checkpoints(tmp_path)] == [4, 6]


def test_a_save_that_fails_is_tried_once(tmp_path):
    """With `on_save_error="warn"` also the save of the last update step, with which an epoch ends."""
    tried = []

    class Fails(Trainer):
        def _save(self, output_dir=None, state_dict=None):
            tried.append(self.state.global_step)
            raise OSError(errno.ENOSPC, "No space left on device")

    saving_trainer(tmp_path, Fails, on_save_error="warn", save_steps=2).train()
    assert tried == [2, 4, 6]


class WritesItself(Trainer):
    """Overrides what is written of the model, and looks at it at once."""

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        assert Path(output_dir, "model.safetensors").is_file()
        Path(output_dir, "mine.txt").write_text(threading.current_thread().name)


class LooksAtFolder(Trainer):
    """Overrides the whole save, and looks at the folder afterwards."""

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        assert Path(self.args.output_dir, f"checkpoint-{self.state.global_step}", "model.safetensors").is_file()


class Uploads(TrainerCallback):
    """Looks at the folder when told of a save."""

    def on_save(self, args, state, control, **kwargs):
        assert Path(args.output_dir, f"checkpoint-{state.global_step}", "optimizer.pt").is_file()


def test_overridden_methods(tmp_path):
    """What a subclass writes itself is written at once; who looks at the folder afterwards finds it there."""
    saving_trainer(tmp_path / "at once", WritesItself).train()
    saving_trainer(tmp_path / "later", WritesItself, save_async=True).train()
    assert files(tmp_path / "later") == files(tmp_path / "at once")
    assert (tmp_path / "later" / "checkpoint-6" / "mine.txt").read_text() == threading.main_thread().name
    saving_trainer(tmp_path / "looks", LooksAtFolder, save_async=True).train()
    saving_trainer(tmp_path / "uploads", save_async=True, callbacks=[Uploads()]).train()
    assert len(list_checkpoints(tmp_path / "looks")) == len(list_checkpoints(tmp_path / "uploads")) == 3


def kept_memory(folder, kind=Trainer, **fields):
    """Train, and return the trainer and the sizes of the memory that it keeps for snapshots after step 5."""
    kept = []

    class Looks(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                writer = trainer.checkpoint_writer
                writer.wait()
                kept.extend(size for (size, _), free in writer.buffers._free.items() for _ in free)

    trainer = saving_trainer(folder, kind, callbacks=[Looks()], save_async=True, **fields)
    trainer.train()
    return trainer, sorted(kept)


def test_memory_of_snapshots_is_freed_at_the_end(tmp_path):
    """A run keeps it from save to save, and no longer."""
    trainer, kept = kept_memory(tmp_path)
    assert sum(kept) >= 3 * sum(parameter.nbytes for parameter in trainer.model.parameters())
    assert trainer.checkpoint_writer.buffers._free == {}


def test_memory_of_a_failed_snapshot_is_used_again(tmp_path):
    """A save that fails before it goes on in the background leaves no more memory taken than one that does not."""

    class FailsOnce(Trainer):
        def _save_rng_state(self, output_dir):
            if self.state.global_step == 2:
                raise OSError("the disk is full")
            super()._save_rng_state(output_dir)

    trainer, kept = kept_memory(tmp_path / "fails", FailsOnce, on_save_error="warn")
    assert [item.step for item in list_checkpoints(trainer.args.output_dir)] == [4, 6]
    assert kept == kept_memory(tmp_path / "whole")[1]


def test_the_thread_is_on_the_ranks_gpu(monkeypatch):
    """A thread starts on GPU 0, of which each rank would take memory; without CUDA none is chosen."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append((threading.get_ident(), device)))
    tasks = BackgroundTasks()
    tasks.start(lambda: None)
    tasks.wait()
    assert chosen == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    tasks.start(lambda: chosen.append((threading.get_ident(), "task")))
    tasks.wait()
    assert [what for _, what in chosen] == [3, "task"]
    assert len({thread for thread, _ in chosen} - {threading.get_ident()}) == 1


def test_a_run_trains_on_while_files_are_removed(tmp_path, monkeypatch):
    """The files of a checkpoint beyond the limit are there while the next update step is made, and gone at the end."""
    trained_on, rmtree, held = threading.Event(), shutil.rmtree, []

    def held_rmtree(path):
        held.append(trained_on.wait(PATIENCE))
        rmtree(path)

    class Goes(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 4:
                trained_on.set()

    monkeypatch.setattr(shutil, "rmtree", held_rmtree)
    saving_trainer(tmp_path, callbacks=[Goes()], save_total_limit=1).train()
    assert held == [True, True]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-6"]


def test_what_is_collected_is_copied(tmp_path):
    """Training may change it before it is written, except for what has been made for the checkpoint."""
    state, snapshot = {"one": torch.arange(4.0), "text": "kept"}, Snapshot(HostBuffers())
    for copied in ({}, {"copy": as_it_is}):
        snapshot.add(CheckpointFile(torch.save, state, tmp_path / str(len(snapshot.files)), **copied))
    state["one"] += 1
    assert list(tmp_path.iterdir()) == []
    snapshot.write()
    found = [torch.load(tmp_path / name)["one"].tolist() for name in "01"]
    assert found == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_writes_and_saver():
    """What all ranks write together comes first, with the thread's group; the saver hands an error on once."""
    made, snapshot = [], Snapshot(HostBuffers(), group="the thread's")

    def alone(content, path):
        made.append((content, path))

    def together(content, path, *, group):
        made.append((content, path, group))

    here = Path("here")
    files = [
        CheckpointFile(alone, 1, here),
        CheckpointFile(together, 2, here, by_all_ranks=True),
        CheckpointFile(alone, 3, here),
    ]
    for file in files:
        file.write()
        snapshot.add(file)
    assert made == [(1, here), (2, here, None), (3, here)]
    made.clear()
    saver = BackgroundTasks()
    saver.start(snapshot.write)
    saver.wait()
    assert made == [(2, here, "the thread's"), (1, here), (3, here)]
    saver.start(lambda: made.remove("nothing"))
    with pytest.raises(ValueError, match="not in list"):
        saver.wait()
    saver.wait()


def test_shell_of_a_model():
    """What is written with keeps the parameters it had, in modules of the same classes, when the model's change."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sequential())
    model.tied = model[0]
    shell = shell_of(model)
    names, kinds = list(model.state_dict()), [type(part) for part in model.modules()]
    weight = model[0].weight
    del model[0].weight, model[1].running_mean, model.tied
    assert list(shell.state_dict()) == names
    assert [type(part) for part in shell.modules()] == kinds
    assert shell[0].weight is shell.tied.weight is weight


def written(folder, threads):
    """Return three files, whose writing notes the thread, by name."""

    def write(content, path):
        threads[path.name] = threading.current_thread()
        path.write_text(content)

    return [CheckpointFile(write, name, folder / name) for name in ("weights", "optimizer", "schedule")]


def collect(*files, then=lambda: None):
    """Give away ``files``, which are written after ``then``."""
    with written_side_by_side() as put:
        for file in files:
            put(file)
        then()


def test_states_are_written_beside_the_weights(tmp_path):
    """The first file here and the others in one thread, once all are collected; then all are there."""
    threads, before = {}, []
    collect(*written(tmp_path, threads), then=lambda: before.extend(tmp_path.iterdir()))
    assert before == []
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: name for name in threads}
    assert threads["weights"] is threading.current_thread()
    assert threads["optimizer"] is threads["schedule"] is not threading.current_thread()
    assert not threads["optimizer"].is_alive()


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_beside_is_raised_when_all_has_ended(fails, tmp_path):
    """Whichever thread it is in: what the other one writes is there, and no thread is left."""
    threads = {}
    files = written(tmp_path, threads)
    files[fails] = CheckpointFile(lambda content, path: path.write_text(content), 1, tmp_path / "no text")
    with pytest.raises(TypeError, match="str"):
        collect(*files)
    assert threads.keys() == ({"weights"} if fails else {"optimizer", "schedule"})
    assert not any(thread.name == "hf_compat-save" for thread in threading.enumerate())


def test_nothing_is_written_if_collecting_fails(tmp_path):
    """An error before all files are collected leaves all of them out."""
    threads = {}
    with pytest.raises(ZeroDivisionError):
        collect(*written(tmp_path, threads), then=lambda: 1 / 0)
    assert not threads
