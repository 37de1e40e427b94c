"""The checkpoint that a run resumes from: what is read of it, how often, and what is said of what does not fit."""

import builtins
import collections
import io
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import hf_compat.checkpoint.finding
from hf_compat import Trainer
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.checkpoint.states import CheckpointReader
from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState
from tests.support import trainers

new_trainer = partial(trainers.new_trainer, max_steps=4, save_steps=2, per_device_train_batch_size=2)


class Opens:
    """Counts, once it is told of a folder, how often each file in it is opened."""

    def __init__(self):
        self.folder = None
        self.counts = collections.Counter()

    def open(self, file, *given, **named):
        if self.folder is not None and isinstance(file, str | Path) and Path(file).parent == self.folder:
            self.counts[Path(file).name] += 1
        return _open(file, *given, **named)


_open = builtins.open


@pytest.fixture
def opens(monkeypatch):
    """What is opened of a checkpoint by the run that resumes from it, after the check that it is complete."""
    noted = Opens()

    def unseen(path, **options):
        folder, noted.folder = noted.folder, None
        reason = incomplete_reason(path, **options)
        noted.folder = folder
        return reason

    monkeypatch.setattr(hf_compat.checkpoint.finding, "incomplete_reason", unseen)
    for module in (builtins, io):  # torch opens files by the one, pathlib by the other
        monkeypatch.setattr(module, "open", noted.open)
    return noted


class Counting(Trainer):
    """Counts how often optimizer and schedule are created and loaded."""

    def __init__(self, *args, **kwargs):
        self.calls = collections.Counter()
        super().__init__(*args, **kwargs)

    def create_optimizer(self, *given):
        self.calls["create_optimizer"] += 1
        return super().create_optimizer(*given)

    def create_scheduler(self, *given, **named):
        self.calls["create_scheduler"] += 1
        return super().create_scheduler(*given, **named)

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.calls["load"] += 1
        super()._load_optimizer_and_scheduler(checkpoint)


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        pytest.param(2, {}, id="in the middle"),
        pytest.param(4, {"num_train_epochs": 1, "max_steps": -1}, id="at the end"),
    ],
)
def test_a_resume_opens_each_file_once(step, fields, tmp_path, opens):
    """Weights, optimizer, schedule, random states, `lightning.pt` and `trainer_state.json` are each read once."""
    new_trainer(tmp_path, **fields).train()
    trainer = new_trainer(tmp_path, Counting, **fields)
    opens.folder = tmp_path / f"checkpoint-{step}"
    trainer.train(resume_from_checkpoint=str(opens.folder))
    assert trainer.state.global_step == 4
    wanted = {"optimizer.pt", "scheduler.pt", "lightning.pt", "trainer_state.json", "lightning.json"}
    assert opens.counts == dict.fromkeys(wanted | ({"rng_state.pth"} if step == 2 else set()), 1)
    assert trainer.calls == {"create_optimizer": 1, "create_scheduler": 1, "load": 1}


def test_a_state_is_a_new_object_each_time(tmp_path):
    """What a run changes of its state is not seen by the next reader, and the file is not needed again."""
    TrainerState(global_step=3, log_history=[{"loss": 1.0}]).save_to_json(tmp_path / "trainer_state.json")
    point = CheckpointReader(tmp_path)
    point.trainer_state().log_history[0]["loss"] = 2.0
    (tmp_path / "trainer_state.json").unlink()
    assert point.trainer_state().log_history == [{"loss": 1.0}]
    point.drop_caches()
    with pytest.raises(FileNotFoundError):
        point.trainer_state()


def test_what_lightning_pt_holds(tmp_path):
    """An entry is read by the function given; without the file, or the entry, there is nothing to read."""
    assert CheckpointReader(tmp_path).lightning("position", int) is None
    torch.save({"position": "7"}, tmp_path / "lightning.pt")
    point = CheckpointReader(tmp_path)
    assert point.lightning("position", int) == 7
    assert point.lightning("stream", int) is None
    assert point.lightning_state() == {"position": "7"}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        pytest.param([1], "position", "contains a list, not a dict", id="no dict"),
        pytest.param({"position": "moon"}, "position", "is damaged: invalid literal", id="a damaged entry"),
        pytest.param({"callbacks": "moon"}, "callbacks", "does not fit this run's Lightning callbacks", id="callbacks"),
    ],
)
def test_what_does_not_fit_is_refused(content, name, message, tmp_path):
    """The error names the file and says what is wrong with it."""
    torch.save(content, tmp_path / "lightning.pt")
    with pytest.raises(CheckpointError, match=rf"lightning\.pt`.* {message}"):
        CheckpointReader(tmp_path).lightning(name, int)


def test_states_of_objects(tmp_path):
    """`read` returns the content of a file, None without it."""
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "scaler.pt")
    point = CheckpointReader(tmp_path)
    assert point.read("scheduler.pt") is None
    assert set(point.read("scaler.pt")) == {"weight", "bias"}
