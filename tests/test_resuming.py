"""A run that goes on from a checkpoint: of a run that moved, and with states that do not fit."""

import shutil

import pytest
import torch
from helpers import ListDataset, PlainModel, vector_rows
from lightning.pytorch.callbacks import EarlyStopping

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import CheckpointError


def new_trainer(folder, callbacks=(), **fields):
    settings = {"max_steps": 4, "save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    args = TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **settings | fields)
    rows = ListDataset(vector_rows(8))
    return Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks))


def test_the_best_model_of_a_run_that_moved_is_loaded(tmp_path):
    """The resumed run finds the best checkpoint beside the one it goes on from, and ends with its weights."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "step", "greater_is_better": False}
    best |= {"eval_strategy": "steps", "eval_steps": 1}
    first = new_trainer(tmp_path / "old", **best, max_steps=2)
    first.compute_metrics = lambda prediction: {"step": first.state.global_step}
    first.train()
    wanted = {name: value.clone() for name, value in first.model.state_dict().items()}
    shutil.move(tmp_path / "old", tmp_path / "new")

    second = new_trainer(tmp_path / "new", **best)
    second.compute_metrics = lambda prediction: {"step": second.state.global_step}
    second.train(resume_from_checkpoint=True)
    assert second.state.best_model_checkpoint == str(tmp_path / "new" / "checkpoint-1")
    assert all(torch.equal(value, wanted[name]) for name, value in second.model.state_dict().items())


def test_a_state_that_leads_elsewhere_is_refused(tmp_path):
    """A state whose best checkpoint is no checkpoint stops the resume before anything is trained."""
    new_trainer(tmp_path, max_steps=1).train()
    path = tmp_path / "checkpoint-1" / "trainer_state.json"
    path.write_text(path.read_text().replace('"best_model_checkpoint": null', '"best_model_checkpoint": "../../home"'))
    trainer = new_trainer(tmp_path)
    with pytest.raises(CheckpointError, match="best_model_checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 1
    assert not (tmp_path / "checkpoint-2").exists()


def test_states_of_lightning_callbacks_that_do_not_fit_are_refused(tmp_path):
    """A `lightning.pt` with something else in it is an error that names it."""
    stopper = EarlyStopping("eval_loss", patience=9)
    fields = {"eval_strategy": "steps", "eval_steps": 1}
    new_trainer(tmp_path, [stopper], max_steps=1, **fields).train()
    torch.save({"callbacks": {stopper.state_key: {"moon": 1}}}, tmp_path / "checkpoint-1" / "lightning.pt")
    with pytest.raises(CheckpointError, match=r"lightning\.pt"):
        new_trainer(tmp_path, [stopper], **fields).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize("state", [3, [3], {}, {"args": {"moon": 1}, "attributes": {}}], ids=str)
def test_a_callback_state_that_does_not_fit_is_refused(state, tmp_path):
    """Under `restore_callback_states_from_checkpoint` a state that is none is an error that names the callback."""
    new_trainer(tmp_path, max_steps=1).train()
    trainer = new_trainer(tmp_path, restore_callback_states_from_checkpoint=True)
    trainer.state.stateful_callbacks = {"TrainerControl": state}
    with pytest.raises(CheckpointError, match="TrainerControl"):
        trainer._load_callback_state()
