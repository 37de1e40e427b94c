"""A run that goes on from a checkpoint: of a run that moved, and with states that do not fit."""

import errno
import json
import os
import shutil
import warnings
from functools import partial

import pytest
import torch
import transformers
from lightning.pytorch.callbacks import EarlyStopping
from safetensors.torch import load_file

import hf_compat
from hf_compat import Trainer, TrainerCallback
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.errors import CheckpointError, HFCompatWarning
from tests.support import trainers
from tests.support.helpers import ListDataset, Stream
from tests.support.trainers import seeing_trainer

new_trainer = partial(trainers.new_trainer, max_steps=4, save_steps=1, per_device_train_batch_size=2)


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


CADENCE = ("logging_steps", "eval_steps", "save_steps")
NEWER_FIELDS = (*CADENCE, "train_batch_size", "num_input_tokens_seen", "stateful_callbacks", "best_global_step")
"""Fields of the state that releases before 4.31, or later ones, did not write."""


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "null"])
def test_a_state_of_an_old_release_is_completed_by_the_arguments(empty, tmp_path, caplog):
    """A cadence and batch size that the file does not have are the arguments'; transformers refuses such a file."""
    cadence = {"logging_steps": 1, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    new_trainer(tmp_path, max_steps=2, **cadence).train()
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    for name in NEWER_FIELDS:
        del state[name]
        if empty and name != "num_input_tokens_seen":
            state[name] = None
    del state["is_hyper_param_search"]
    path.write_text(json.dumps(state))
    theirs = new_trainer(tmp_path, library=transformers, max_steps=6, **cadence)
    with pytest.raises(TypeError):
        theirs.train(resume_from_checkpoint=str(path.parent))
    caplog.clear()
    trainer = new_trainer(tmp_path, max_steps=6, **cadence)
    trainer.train(resume_from_checkpoint=str(path.parent))
    after = [log for log in trainer.state.log_history if log["step"] > 2]
    assert [log["step"] for log in after if "loss" in log] == [3, 4, 5, 6]
    assert [log["step"] for log in after if "eval_runtime" in log] == [3, 6]
    assert [item.step for item in list_checkpoints(tmp_path)] == [2, 4, 6]
    kept = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert [kept[name] for name in CADENCE] == [1, 3, 2]
    assert (kept["train_batch_size"], kept["is_hyper_param_search"]) == (trainer.args.train_batch_size, False)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_states_of_lightning_callbacks_that_do_not_fit_are_refused(tmp_path):
    """A `lightning.pt` with something else in it is an error that names it."""
    stopper = EarlyStopping("eval_loss", patience=9)
    fields = {"eval_strategy": "steps", "eval_steps": 1}
    new_trainer(tmp_path, callbacks=[stopper], max_steps=1, **fields).train()
    torch.save({"callbacks": {stopper.state_key: {"moon": 1}}}, tmp_path / "checkpoint-1" / "lightning.pt")
    with pytest.raises(CheckpointError, match=r"lightning\.pt"):
        new_trainer(tmp_path, callbacks=[stopper], **fields).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-1")
        )


@pytest.mark.parametrize("state", [3, [3], {"args": 3}, {"args": {"moon": 1}, "attributes": {}}], ids=str)
def test_a_callback_state_that_does_not_fit_is_refused(state, tmp_path):
    """Under `restore_callback_states_from_checkpoint` a state that is none is an error that names the callback."""
    new_trainer(tmp_path, max_steps=1).train()
    trainer = new_trainer(tmp_path, restore_callback_states_from_checkpoint=True)
    trainer.state.stateful_callbacks = {"TrainerControl": state}
    with pytest.raises(CheckpointError, match="TrainerControl"):
        trainer._load_callback_state()


def test_auto_passes_over_an_incomplete_checkpoint(tmp_path, caplog):
    """The newest complete one is gone on from; what is passed over is named, with the reason."""
    new_trainer(tmp_path, max_steps=3).train()
    os.truncate(tmp_path / "checkpoint-3" / "optimizer.pt", 99)
    trainer = new_trainer(tmp_path)
    trainer.train(resume_from_checkpoint="auto")
    assert str(trainer.training_run.checkpoint.folder) == str(tmp_path / "checkpoint-2")
    assert "checkpoint-3: `optimizer.pt` has 99 bytes, expected " in caplog.text


class Remembers(Trainer):
    """Keeps which checkpoints were there while each was written; may fail to write one."""

    fails_at = None

    def _save(self, output_dir=None, state_dict=None):
        self.there[self.state.global_step] = [item.step for item in list_checkpoints(self.args.output_dir)]
        if self.state.global_step == self.fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._save(output_dir, state_dict)


@pytest.mark.parametrize(("fails_at", "left"), [(None, [4]), (3, [4]), (4, [3])])
def test_the_checkpoint_gone_on_from_stays_until_a_newer_one_is_complete(fails_at, left, tmp_path):
    """Rotation to one checkpoint deletes it only then, also where a save in between fails."""
    new_trainer(tmp_path, max_steps=2, save_steps=2).train()
    trainer = new_trainer(tmp_path, kind=Remembers, save_total_limit=1, on_save_error="warn", save_steps=1)
    trainer.there, trainer.fails_at = {}, fails_at
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    path.write_text(path.read_text().replace('"save_steps": 2', '"save_steps": 1'))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.there == {3: [2], 4: [2] if fails_at == 3 else [3]}
    assert [item.step for item in list_checkpoints(tmp_path)] == left


@pytest.mark.parametrize("save_async", [False, True], ids=["at once", "in the background"])
def test_best_rotation_and_resume_together(save_async, tmp_path):
    """The best model is loaded, its checkpoint alone is left, and the run can be gone on with from there."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "step", "save_total_limit": 1}
    best |= {"eval_strategy": "steps", "eval_steps": 1, "save_async": save_async}

    def trained(folder, metric, **arguments):
        torch.manual_seed(0)  # the first weights
        trainer = new_trainer(folder, **best)
        trainer.compute_metrics = lambda prediction: {"step": metric(trainer.state.global_step)}
        trainer.train(**arguments)
        return trainer

    # Better up to the third update step, worse after it.
    trainer = trained(tmp_path / "whole", lambda step: step if step < 4 else 0)
    assert [item.step for item in list_checkpoints(tmp_path / "whole")] == [3]
    weights = load_file(tmp_path / "whole" / "checkpoint-3" / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())
    resumed = trained(tmp_path / "whole", lambda step: step, resume_from_checkpoint=tmp_path / "whole" / "checkpoint-3")
    whole = trained(tmp_path / "other", lambda step: step)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "whole" / "checkpoint-4")
    assert [item.step for item in list_checkpoints(tmp_path / "whole")] == [4]
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))


def test_a_run_that_ends_early_keeps_the_newest_checkpoint_beside_the_best(tmp_path):
    """Under a limit of one, a run that an error ends can be resumed from where it was; finished, it leaves the best."""
    settings = {"load_best_model_at_end": True, "metric_for_best_model": "step", "save_total_limit": 1}
    settings |= {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 4}

    def begun(fails_at):
        def metric(_):
            if trainer.state.global_step == fails_at:
                raise RuntimeError("interrupted")
            return {"step": -trainer.state.global_step}

        trainer = new_trainer(tmp_path, **settings)
        trainer.compute_metrics = metric
        return trainer

    with pytest.raises(RuntimeError, match="interrupted"):
        begun(fails_at=4).train()
    assert [item.step for item in list_checkpoints(tmp_path)] == [1, 3]
    assert begun(fails_at=None).train(resume_from_checkpoint=True).global_step == 4
    assert [item.step for item in list_checkpoints(tmp_path)] == [1]


class StopsAt(TrainerCallback):
    """Ends the run after an update step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def samples(trainer):
    return [sample for batch in trainer.seen for sample in batch]


@pytest.mark.parametrize(
    ("interval", "strategy"), [("logging_steps", "logging_strategy"), ("eval_steps", "eval_strategy")]
)
def test_an_interval_of_zero_is_no_interval(interval, strategy, tmp_path):
    """A resumed run takes the interval from the checkpoint, and says before training that it cannot divide by it."""
    seeing_trainer(tmp_path, count=4, max_steps=2, **{strategy: "no", interval: 0}).train()
    resumed = seeing_trainer(tmp_path, count=4, max_steps=4, **{strategy: "steps", interval: 2})
    with pytest.raises(CheckpointError, match=f"`{strategy}='steps'`, but `{interval}` is 0 in the checkpoint"):
        resumed.train(resume_from_checkpoint=True)
    assert resumed.seen == []


OTHER_WINDOWS = {
    "larger batches": {"per_device_train_batch_size": 4},
    "smaller batches": {"per_device_train_batch_size": 1},
    "longer windows": {"gradient_accumulation_steps": 3},
    "both, with workers": {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "dataloader_num_workers": 2,
    },
}


@pytest.mark.parametrize(
    ("step", "windows"),
    [
        pytest.param(3, "larger batches", id="larger batches from the middle of an epoch"),
        pytest.param(7, "larger batches", id="larger batches from an epoch's end"),
        pytest.param(10, "smaller batches", id="smaller batches from the second epoch"),
        pytest.param(3, "longer windows", id="longer windows"),
        pytest.param(10, "both, with workers", id="both, with workers"),
    ],
)
def test_resuming_with_other_windows_goes_on_at_the_next_sample(step, windows, tmp_path):
    """Every epoch goes on to give each sample once, in the order of the whole run, to the end of the last epoch.

    Seven batches of two make an epoch of 13 samples.
    """
    whole = seeing_trainer(tmp_path / "whole", per_device_train_batch_size=2, num_train_epochs=3, save_steps=step)
    whole.train()
    assert [sorted(samples(whole)[start : start + 13]) for start in (0, 13, 26)] == [list(range(13))] * 3

    # transformers 4.57 takes the batch size from the checkpoint, whatever the arguments say.
    fields = {"per_device_train_batch_size": 2, "num_train_epochs": 3, "semantics": "5.23", "save_steps": 1000}
    resumed = seeing_trainer(tmp_path / "rest", **fields | OTHER_WINDOWS[windows])
    output = resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    done = {3: 6, 7: 13, 10: 19}[step]
    assert samples(resumed) == samples(whole)[done:]
    assert resumed.state.epoch == 3
    assert output.global_step == resumed.state.max_steps


def test_no_step_left_with_larger_batches(tmp_path):
    """With ``max_steps=0`` and other batches a resumed run makes one update step, as it does with the same."""
    whole = seeing_trainer(tmp_path / "whole", per_device_train_batch_size=2, num_train_epochs=2, save_steps=3)
    whole.train()
    for size in (2, 4):
        fields = {"per_device_train_batch_size": size, "num_train_epochs": 2, "max_steps": 0, "semantics": "5.23"}
        resumed = seeing_trainer(tmp_path / f"rest of {size}", **fields)
        with pytest.warns(HFCompatWarning, match="All `max_steps=0` update steps are already done; like transformers"):
            resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
        assert resumed.state.global_step == 4


def test_resuming_with_other_windows_makes_max_steps(tmp_path):
    """Where ``max_steps`` decides, the run makes that many update steps, over as many epochs as it takes."""
    whole = seeing_trainer(tmp_path / "whole", per_device_train_batch_size=2, max_steps=5)
    whole.train()
    resumed = seeing_trainer(tmp_path / "rest", per_device_train_batch_size=5, max_steps=8, semantics="5.23")
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5")).global_step == 8
    assert [len(batch) for batch in resumed.seen] == [3, 5, 5]
    assert sorted(samples(whole) + resumed.seen[0]) == list(range(13))


@pytest.mark.parametrize(
    ("data", "steps"), [(ListDataset, {"num_train_epochs": 3}), (Stream, {"max_steps": 30})], ids=["sized", "stream"]
)
def test_resuming_again_and_again_with_other_windows(data, steps, tmp_path):
    """Batches of 2, then of 5, then of 3, then of 3 again, each run stopped in the middle of an epoch: none is lost."""
    folder, seen = tmp_path / "run", []
    for size, last in ((2, 3), (5, 4), (3, 6), (3, 7)):
        trainer = seeing_trainer(folder, data=data, per_device_train_batch_size=size, semantics="5.23", **steps)
        trainer.add_callback(StopsAt(last))
        trainer.train(resume_from_checkpoint="auto")
        seen += samples(trainer)
    assert trainer.state.global_step == 7
    assert sorted(seen[:13]) == list(range(13))
    assert len(seen) == 6 + 5 + 2 + 3 + 3
    assert len(set(seen[13:])) == 6


class EndsEpoch(TrainerCallback):
    """Ends an epoch after an update step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = control.should_epoch_stop or state.global_step == self.step


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("callbacks", [[], [EndsEpoch(4)]], ids=["after its end", "after a callback ended it"])
def test_resuming_a_stream_that_began_again(callbacks, workers, tmp_path):
    """A stream goes on in the pass that it was in, also where its windows are the same, and when resumed once more."""
    fields = {"data": Stream, "per_device_train_batch_size": 2, "max_steps": 12, "save_steps": 1}
    fields["dataloader_num_workers"] = workers
    whole, *resumed = (seeing_trainer(tmp_path / name, **fields) for name in ("whole", "rest", "rest of the rest"))
    for trainer in (whole, *resumed):
        for callback in callbacks:
            trainer.add_callback(callback)
    whole.train()
    for trainer, before, step in zip(resumed, ("whole", "rest"), (9, 11), strict=True):
        trainer.train(resume_from_checkpoint=str(tmp_path / before / f"checkpoint-{step}"))
        assert trainer.seen == whole.seen[step:]


@pytest.mark.parametrize("step", [2, 4, 9], ids=["where it ended", "in the next epoch", "at the next epoch's end"])
@pytest.mark.parametrize("data", [ListDataset, Stream])
def test_resuming_after_an_epoch_that_ended_early_when_corrected(step, data, tmp_path):
    """The run goes on where it was, to the end of the run that was not interrupted, with its schedule."""

    def trainer(name):
        fields = {"per_device_train_batch_size": 2, "semantics": "corrected", "save_steps": step, "data": data}
        made = seeing_trainer(
            tmp_path / name, **{"max_steps": 14} if data is Stream else {"num_train_epochs": 2}, **fields
        )
        made.add_callback(EndsEpoch(2))
        return made

    whole, resumed = trainer("whole"), trainer("rest")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert resumed.seen == whole.seen[step:]
    assert resumed.state.max_steps == whole.state.max_steps == 14
    rates = [[entry.get("learning_rate") for entry in each.state.log_history[:-1]] for each in (whole, resumed)]
    assert rates[0] == rates[1]


def test_an_order_that_depends_on_batches_goes_on_by_windows(tmp_path, caplog):
    """Grouping by length orders samples by batch: the run says that it goes on after as many windows."""
    fields = {"train_sampling_strategy": "group_by_length", "num_train_epochs": 1, "semantics": "5.23"}
    whole = seeing_trainer(tmp_path / "whole", per_device_train_batch_size=2, **fields)
    whole.data_collator = lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    whole.train_dataset.rows = [{**row, "input_ids": row["features"]} for row in whole.train_dataset.rows]
    whole.train()
    resumed = seeing_trainer(tmp_path / "rest", per_device_train_batch_size=3, **fields)
    resumed.train_dataset.rows = whole.train_dataset.rows
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert "order of the samples depends on" in caplog.text
    assert len(resumed.seen) == 3


@pytest.mark.parametrize("position", [3, {}, {"epoch": -1}, {"epoch": 0, "batches": "1"}], ids=str)
def test_a_damaged_position_is_refused(position, tmp_path):
    """A position that is none is an error that names its file."""
    new_trainer(tmp_path, max_steps=1).train()
    path = tmp_path / "checkpoint-1" / "lightning.pt"
    torch.save({**torch.load(path), "position": position}, path)
    with pytest.raises(CheckpointError, match=r"lightning\.pt"):
        new_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


class Sets(TrainerCallback):
    """Sets the learning rate and a setting of each group as a run begins, as the warning says."""

    def on_train_begin(self, args, state, control, optimizer, lr_scheduler, **kwargs):
        lr_scheduler.base_lrs = [args.learning_rate] * len(lr_scheduler.base_lrs)
        for group in optimizer.param_groups:
            group["betas"] = (args.adam_beta1, args.adam_beta2)


def test_other_settings_of_the_optimizer_are_told(tmp_path):
    """The checkpoint's win, as in transformers; a callback can set others, and the same ones are no warning."""
    fields = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 1, "save_steps": 2}
    trainers.new_trainer(tmp_path, **fields).train()
    checkpoint, others = str(tmp_path / "checkpoint-2"), {"learning_rate": 1e-3, "adam_beta2": 0.9}

    def resumed(library=hf_compat, callbacks=(), **given):
        trainer = trainers.new_trainer(tmp_path / "b", library=library, callbacks=callbacks, **fields, **given)
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.state.log_history[3]["learning_rate"], trainer.optimizer.param_groups[0]["betas"][1]

    message = r"`betas` \(0.9, 0.999\) instead of \(0.9, 0.9\), `initial_lr` 5e-05 instead of 0.001"
    with pytest.warns(HFCompatWarning, match=message):
        kept = resumed(**others)
    assert kept == resumed(transformers, **others)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HFCompatWarning)
        assert resumed() == kept
    with pytest.warns(HFCompatWarning, match=message):
        rate, beta = resumed(callbacks=[Sets()], **others)
    assert (rate, beta) == (pytest.approx(20 * kept[0]), 0.9)
