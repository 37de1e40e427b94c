"""States of callbacks: saved with a checkpoint, and restored into new callbacks, under both Trainers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelPruning
from transformers import trainer_callback as upstream

import hf_compat
from tests.support.helpers import ListDataset, PlainModel, vector_rows

KINDS = {"ours": hf_compat, "transformers": transformers}
BASES = {
    "ours": (hf_compat.TrainerCallback, hf_compat.ExportableState),
    "transformers": (upstream.TrainerCallback, upstream.ExportableState),
}


class Counter:
    """Counts update steps; part of a callback."""

    def __init__(self, stride=1):
        self.stride, self.count = stride, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.count += self.stride

    def state(self):
        return {"args": {"stride": self.stride}, "attributes": {"count": self.count}}


class Single(Counter):
    """As a Counter, of which a run has one; its state leaves out what it does not need."""

    def state(self):
        return {"attributes": {"count": self.count}}


def new_trainer(kind, folder, *strides, **fields):
    library, bases = KINDS[kind], BASES[kind]
    many, one = (type(each.__name__, (each, *bases), {}) for each in (Counter, Single))
    settings = {"save_steps": 1, "max_steps": 4, "per_device_train_batch_size": 2, "report_to": "none"}
    settings |= {"use_cpu": True, "disable_tqdm": True, "restore_callback_states_from_checkpoint": True}
    args = library.TrainingArguments(str(folder), **settings | fields)
    callbacks = [*map(many, strides), one]
    return library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)), callbacks=callbacks)


def counts_of(trainer):
    """Class names of all callbacks in their order, and what those of this file have counted."""
    callbacks = trainer.callback_handler.callbacks
    names = [type(callback).__name__ for callback in callbacks]
    return names, [(each.stride, each.count) for each in callbacks if isinstance(each, Counter)]


def saved_states(folder, name):
    return json.loads((folder / "trainer_state.json").read_text())["stateful_callbacks"][name]


def test_two_callbacks_of_one_class_are_saved_with_their_current_states(tmp_path):
    """The file has a list of both, in their order, as transformers writes one before training; it does not grow."""
    new_trainer("ours", tmp_path, 1, 10).train()
    assert saved_states(tmp_path / "checkpoint-3", "Counter") == [
        {"args": {"stride": 1}, "attributes": {"count": 3}},
        {"args": {"stride": 10}, "attributes": {"count": 30}},
    ]
    initial = upstream.TrainerState(stateful_callbacks=[type("A", (Counter, *BASES["transformers"]), {})(1)] * 2)
    assert len(initial.stateful_callbacks["A"]) == 2


@pytest.mark.parametrize("resumed", KINDS)
@pytest.mark.parametrize("started", KINDS)
def test_both_are_restored(started, resumed, tmp_path):
    """Either Trainer goes on from our states, and ours from the latest of those that transformers has appended."""
    new_trainer(started, tmp_path, 1, 10, max_steps=2).train()
    trainer = new_trainer(resumed, tmp_path, 1, 10)
    before = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    names, counted = counts_of(trainer)
    if (started, resumed) == ("transformers", "transformers"):
        assert counted == [(1, 2), (10, 20), (1, 4)]  # its list begins with the states before training
    else:
        assert counted == [(1, 4), (10, 40), (1, 4)]
    assert names == [name for name in before if name not in ("Counter", "Single")] + ["Counter", "Counter", "Single"]


@pytest.mark.parametrize("present", [1, 3])
def test_another_number_of_callbacks_is_warned_of(present, tmp_path, caplog):
    """As many states as fit are restored; where the numbers do not agree, a warning says so."""
    new_trainer("ours", tmp_path, 1, 10, max_steps=2).train()
    trainer = new_trainer("ours", tmp_path, *[5] * present)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    restored = {1: [(10, 40), (1, 4)], 3: [(5, 10), (1, 4), (10, 40), (1, 4)]}
    assert counts_of(trainer)[1] == restored[present]
    assert "has 2 states of Counter" in caplog.text


def test_a_derived_class_is_not_mistaken_for_its_base(tmp_path):
    """Each class gets its own state, also where one derives from the other."""
    base = type("Base", (Counter, *BASES["ours"]), {})
    derived = type("Derived", (base,), {})

    def trainer(**fields):
        settings = {"save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none", "use_cpu": True}
        settings |= {"disable_tqdm": True, "restore_callback_states_from_checkpoint": True}
        args = hf_compat.TrainingArguments(str(tmp_path), **settings | fields)
        rows = ListDataset(vector_rows(8))
        return hf_compat.Trainer(PlainModel(), args, train_dataset=rows, callbacks=[derived(10), base(1)])

    trainer(max_steps=2).train()
    again = trainer(max_steps=4)
    again.train(resume_from_checkpoint=True)
    assert sorted(counts_of(again)[1]) == [(1, 4), (10, 40)]


def test_pruned_weights_of_a_resumed_run(tmp_path):
    """Lightning's ModelPruning has its masks in no checkpoint: a resumed run ends with fewer zeros, and says so."""

    def zeros(resume=None):
        torch.manual_seed(0)
        args = {"num_train_epochs": 4, "save_strategy": "epoch", "per_device_train_batch_size": 4, "report_to": "none"}
        trainer = hf_compat.Trainer(
            PlainModel(),
            hf_compat.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **args),
            train_dataset=ListDataset(vector_rows(8)),
            callbacks=[ModelPruning("l1_unstructured", amount=0.2)],
        )
        trainer.train(resume_from_checkpoint=resume)
        return sum(int((weight == 0).sum()) for weight in trainer.model.parameters())

    whole = zeros()
    with pytest.warns(hf_compat.HFCompatWarning, match="keeps its masks in no checkpoint"):
        assert zeros(str(tmp_path / "checkpoint-4")) < whole
