"""A run that changes the working directory: a relative ``output_dir`` is that of the moment at which a save begins."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import torch

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.scripts.crash_script import Model, Rows
from tests.support.checkpoints import contents_of
from tests.support.held_writer import HeldWriter
from tests.support.processes import PATIENCE
from tests.support.trainers import arguments


class Moves(TrainerCallback):
    """Goes to ``elsewhere`` after the save of step 3, before the next one waits for what is still being written."""

    def __init__(self, elsewhere: Path) -> None:
        self.elsewhere = elsewhere

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            os.chdir(self.elsewhere)


class BestFirst(Trainer):
    """Finds each evaluation worse than the one before."""

    def evaluate(self, *_, **__):
        return {"eval_loss": float(self.state.global_step)}


def train_elsewhere(folder, monkeypatch, kind=BestFirst, **fields):
    """Train six update steps with a relative ``output_dir``, from ``here`` on, ``elsewhere`` after the third."""
    for name in ("here", "elsewhere"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder / "here")
    torch.manual_seed(0)
    args = arguments(
        "out",
        per_device_train_batch_size=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        save_total_limit=2,
        metric_for_best_model="loss",
        **fields,
    )
    callbacks = [Moves(folder / "elsewhere")]
    trainer = kind(Model(8), args, train_dataset=Rows(12, 1), eval_dataset=Rows(4, 2), callbacks=callbacks)
    trainer.checkpoint_writer = HeldWriter()
    trainer.train()
    found = {path.relative_to(folder).as_posix(): contents_of(path) for path in folder.glob("*/*/checkpoint-*")}
    assert {path.name for path in folder.glob("*/*/*")} == {Path(name).name for name in found}  # nothing hidden
    return found


def test_each_checkpoint_is_where_it_was_begun(tmp_path, monkeypatch):
    """In the background too, and what is kept of them: the best, found in the directory of the save, and the newest."""
    at_once = train_elsewhere(tmp_path / "at once", monkeypatch)
    assert sorted(at_once) == [
        "elsewhere/out/checkpoint-5",
        "elsewhere/out/checkpoint-6",
        "here/out/checkpoint-1",
        "here/out/checkpoint-3",
    ]
    assert train_elsewhere(tmp_path / "later", monkeypatch, save_async=True) == at_once


def test_files_of_a_deleted_checkpoint_are_found(tmp_path, monkeypatch):
    """They are removed by a thread, which a change of the directory does not mislead."""
    moved, rmtree = threading.Event(), shutil.rmtree

    def held_rmtree(path):
        assert moved.wait(PATIENCE)
        rmtree(path)

    class Tells(Moves):
        def on_step_begin(self, args, state, control, **kwargs):
            super().on_step_begin(args, state, control, **kwargs)
            if state.global_step == 3:
                moved.set()

    monkeypatch.setattr(shutil, "rmtree", held_rmtree)
    monkeypatch.setattr(f"{__name__}.Moves", Tells)
    assert len(train_elsewhere(tmp_path, monkeypatch)) == 4


def test_a_directory_that_was_deleted(tmp_path, monkeypatch):
    """An absolute ``output_dir`` needs no working directory."""
    gone = tmp_path / "gone"
    gone.mkdir()
    settings = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "max_steps": 2, "save_steps": 1}
    args = TrainingArguments(str(tmp_path / "out"), save_async=True, **settings)
    trainer = Trainer(Model(8), args, train_dataset=Rows(12, 1))
    monkeypatch.chdir(gone)
    gone.rmdir()
    trainer.train()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-1", "checkpoint-2"]
