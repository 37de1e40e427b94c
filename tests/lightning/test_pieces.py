"""A run that is taken apart, and one put together by hand, end as ``Trainer.train`` does."""

from __future__ import annotations

import os
import signal

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ThroughputMonitor
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from hf_compat import EarlyStoppingCallback, Trainer, TrainingArguments, default_data_collator, set_seed, to_lightning
from hf_compat.errors import NotSupportedError, TrainerSetupError
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.parity import SCENARIOS, run
from tests.trainer.test_parity import NAMES, check

QUICK = (
    "language_model_with_dropout",
    "resume_within_an_epoch",
    "model_init",
    "best_model_by_epoch_and_one_checkpoint",
)
REFUSED = ("find_batch_size", "search_", "resume_with_the_batch_size_found", "calls_of_every_method")
"""Scenarios of several fits, or of an overridden ``train``, start with these."""
TIMES = ("runtime", "per_second")
TRAIN, HELD_OUT = ListDataset(vector_rows(26)), ListDataset(vector_rows(9, seed=1))


def two_epochs(folder, **fields):
    """Arguments of a run of two epochs with a short last window, evaluations and checkpoints."""
    given = {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 3,
    }
    return TrainingArguments(str(folder), **{**given, **fields})


def model():
    """The same model each time."""
    torch.manual_seed(0)
    return PlainModel()


def plain_trainer(*given, max_epochs=-1, **named):
    """A ``lightning.Trainer`` as a person builds it, without its output."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(max_epochs=max_epochs, callbacks=[*given], **{**quiet, **named})


def ended(trainer):
    """What of a run is compared: its state, its logs without times, and its weights."""
    logs = [{k: v for k, v in row.items() if not k.endswith(TIMES)} for row in trainer.state.log_history]
    return logs, trainer.state.global_step, {name: t.tolist() for name, t in trainer.model.state_dict().items()}


def end_of_train(folder, kind=Trainer, resume=None, **fields):
    """What a run of ``Trainer.train`` ends with."""
    trainer = kind(model(), two_epochs(folder, **fields), train_dataset=TRAIN, eval_dataset=HELD_OUT)
    trainer.train(resume_from_checkpoint=resume)
    return ended(trainer)


def fitted(folder, *lightning_callbacks, module=None, data=None, resume=None, named=None, **fields):
    """What a run of hand-assembled pieces ends with."""
    args = two_epochs(folder, **fields)
    ours = callbacks(args, resume_from_checkpoint=resume)
    lightning_trainer = plain_trainer(*ours, *lightning_callbacks, **(named or {}))
    lightning_trainer.fit(module or HFModule(model(), args), datamodule=data or HFDataModule(args, TRAIN, HELD_OUT))
    return ended(ours[-1].hf_trainer)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in NAMES
        if not name.startswith(REFUSED)
    ],
)
def test_pieces_do_what_train_does(name, tmp_path):
    """Events, random states, logs, weights, results and files are equal to the last bit."""
    expected = run(SCENARIOS[name].body, "ours", tmp_path / "trainer")
    check(expected, run(SCENARIOS[name].body, "pieces", tmp_path / "pieces"), name)


def test_pieces_by_hand_do_what_train_does(tmp_path):
    """Without a Trainer in the script: same logs, weights and checkpoints, the best one loaded at the end."""
    fields = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1}
    assert fitted(tmp_path / "pieces", **fields) == end_of_train(tmp_path / "trainer", **fields)
    kept = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("pieces", "trainer")]
    assert kept[0] == kept[1] != []


def test_pieces_by_hand_resume(tmp_path):
    """From a checkpoint within an epoch the run ends where the one that was not interrupted ends."""
    logs, step, weights = fitted(tmp_path / "whole")
    resumed = fitted(tmp_path / "rest", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed[1:] == (step, weights)
    assert resumed[0][:-1] == logs[:-1]  # the last one has the mean loss since the start


def test_callbacks_of_both_kinds_take_part(tmp_path):
    """Of transformers' callbacks given to ``callbacks``, and Lightning's in the trainer, each stops a run."""
    fields = {"eval_steps": 1, "learning_rate": 0.5, "num_train_epochs": 20, "metric_for_best_model": "loss"}
    args = two_epochs(tmp_path / "one", load_best_model_at_end=True, save_steps=1, **fields)
    args.eval_steps = 1
    ours = callbacks(args, [EarlyStoppingCallback(1)])
    plain_trainer(*ours).fit(HFModule(model()), datamodule=HFDataModule(None, TRAIN, HELD_OUT))
    assert 1 < ours[-1].hf_trainer.state.global_step < 20
    _, step, _ = fitted(tmp_path / "two", EarlyStopping("eval_loss", patience=1), **fields)
    assert step == ours[-1].hf_trainer.state.global_step


class Halved(HFModule):
    """Trains on half the loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss / 2, outputs) if return_outputs else loss / 2


class HalvingTrainer(Trainer):
    """The same override on the Trainer."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss / 2, outputs) if return_outputs else loss / 2


class Sgd(HFModule):
    """Configures its own optimizer, and a schedule."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class SgdTrainer(Trainer):
    """The same on the Trainer."""

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        return self.lr_scheduler


class InOrder(HFDataModule):
    """Gives its own batches, in order."""

    def train_dataloader(self):
        return DataLoader(TRAIN, batch_size=5, collate_fn=default_data_collator)

    def val_dataloader(self):
        return DataLoader(ListDataset(HELD_OUT.rows[:4]), batch_size=2, collate_fn=default_data_collator)


class InOrderTrainer(Trainer):
    """The same on the Trainer."""

    def get_train_dataloader(self):
        loader = DataLoader(self.train_dataset, batch_size=5, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def get_eval_dataloader(self, eval_dataset=None):
        rows = ListDataset(HELD_OUT.rows[:4])
        return self.accelerator.prepare(DataLoader(rows, batch_size=2, collate_fn=self.data_collator))


@pytest.mark.parametrize(
    ("module", "data", "kind"),
    [
        pytest.param(Halved, HFDataModule, HalvingTrainer, id="compute_loss"),
        pytest.param(Sgd, HFDataModule, SgdTrainer, id="configure_optimizers"),
        pytest.param(HFModule, InOrder, InOrderTrainer, id="loaders"),
    ],
)
def test_pieces_are_changed_by_subclasses(tmp_path, module, data, kind):
    """A method of a module or data module of one's own does what the Trainer's override does."""
    expected = end_of_train(tmp_path / "trainer", kind)
    own = {"module": module(model()), "data": data(None, TRAIN, HELD_OUT)}
    assert fitted(tmp_path / "by hand", **own) == expected
    trainer = Trainer(model(), two_epochs(tmp_path / "apart"), train_dataset=TRAIN, eval_dataset=HELD_OUT)
    lightning_trainer, _, _ = to_lightning(trainer)
    lightning_trainer.fit(module(trainer.model), datamodule=data(None, TRAIN, HELD_OUT))
    assert ended(trainer) == expected
    assert not {"compute_loss", "get_train_dataloader", "get_eval_dataloader"} & vars(trainer).keys()


def test_the_data_of_a_trainer_may_be_changed(tmp_path):
    """Until ``fit`` the data module may have other datasets, or be another, than the Trainer was made with."""
    few = ListDataset(TRAIN.rows[:9])
    expected = Trainer(model(), two_epochs(tmp_path / "few"), train_dataset=few, eval_dataset=few)
    expected.train()
    for way in ("changed", "another"):
        trainer = Trainer(model(), two_epochs(tmp_path / way), train_dataset=TRAIN, eval_dataset=HELD_OUT)
        lightning_trainer, module, data = to_lightning(trainer)
        if way == "another":
            data = HFDataModule(None, few, few)
        data.train_dataset = data.eval_dataset = few
        lightning_trainer.fit(module, datamodule=data)
        assert ended(trainer) == ended(expected)


def test_loaders_without_a_data_module(tmp_path):
    """``fit`` takes loaders of batches as they are; Lightning runs no validation of its own over the second."""
    sets = (TRAIN, ListDataset(HELD_OUT.rows[:4]))
    loaders = [DataLoader(rows, batch_size=5, collate_fn=default_data_collator) for rows in sets]
    ours = callbacks(two_epochs(tmp_path / "own"))
    plain_trainer(*ours).fit(HFModule(model()), *loaders)
    logs, step, _ = ended(ours[-1].hf_trainer)
    assert (step, [row["step"] for row in logs if "eval_loss" in row]) == (6, [3, 6])


def test_lightnings_keywords_count(tmp_path):
    """What the ``lightning.Trainer`` is given sets the fields of the arguments, or is refused where it contradicts."""
    assert fitted(tmp_path / "three", named={"max_steps": 3})[1] == 3
    with pytest.raises(TrainerSetupError, match=r"'max_steps': 3.* contradicts `max_steps=4`"):
        fitted(tmp_path / "both", named={"max_steps": 3}, max_steps=4)


class StopAtOnce(lightning.Callback):
    """Wants to stop after the first update step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = True


@pytest.mark.parametrize(("named", "steps"), [({}, 1), ({"min_steps": 3}, 3)], ids=["no minimum", "three steps"])
def test_a_minimum_of_lightnings_trainer(tmp_path, named, steps):
    """Who wants to stop waits for the minimum that the ``lightning.Trainer`` was given."""
    assert fitted(tmp_path, StopAtOnce(), named={"min_epochs": 0, **named})[1] == steps


def test_a_development_run_of_lightnings_trainer(tmp_path):
    """``fast_dev_run`` of the ``lightning.Trainer`` is a run of so many update steps, without checkpoints."""
    logs, step, _ = fitted(tmp_path, named={"fast_dev_run": 2})
    assert (step, [row["step"] for row in logs if "eval_loss" in row]) == (2, [2])
    assert not list(tmp_path.iterdir())


def test_a_precision_that_contradicts_the_arguments(tmp_path):
    """It is refused before training, by name."""
    with pytest.raises(TrainerSetupError, match="precision"):
        fitted(tmp_path, named={"precision": "64-true"}, bf16=True)


def test_arguments_that_differ_are_refused(tmp_path):
    """All pieces have the same arguments."""
    other = HFDataModule(two_epochs(tmp_path, seed=1), TRAIN, HELD_OUT)
    with pytest.raises(TrainerSetupError, match="those of HFDataModule differ"):
        fitted(tmp_path, data=other)


def test_pieces_are_for_one_fit(tmp_path):
    """A second fit is refused, and so is what Lightning would resume from, with what to do instead."""
    args = two_epochs(tmp_path)
    lightning_trainer = plain_trainer(*callbacks(args))
    lightning_trainer.fit(HFModule(model()), datamodule=HFDataModule(None, TRAIN, HELD_OUT))
    with pytest.raises(TrainerSetupError, match="Each `fit` needs its own"):
        lightning_trainer.fit(HFModule(model()), datamodule=HFDataModule(None, TRAIN, HELD_OUT))
    folder = str(tmp_path / "checkpoint-3")
    data = HFDataModule(None, TRAIN, HELD_OUT)
    with pytest.raises(TrainerSetupError, match="Pass it as `resume_from_checkpoint`"):
        plain_trainer(*callbacks(args)).fit(HFModule(model()), datamodule=data, ckpt_path=folder)


@pytest.mark.filterwarnings("ignore")  # of loaders, by Lightning, before the errors
def test_what_is_no_piece_is_refused(tmp_path):
    """Another module, a module without the callbacks, and a callback that counts windows as batches."""
    with pytest.raises(TrainerSetupError, match="BoringModel is not an HFModule"):
        plain_trainer(*callbacks(two_epochs(tmp_path))).fit(BoringModel())
    with pytest.raises(TrainerSetupError, match=r"Pass `hf_compat.lightning.callbacks\(args\)`"):
        plain_trainer(enable_checkpointing=False).fit(HFModule(model()), DataLoader(TRAIN))
    with pytest.raises(TrainerSetupError, match="ThroughputMonitor would count a window"):
        fitted(tmp_path, ThroughputMonitor(len), named={"logger": CSVLogger(tmp_path)})


class Overriding(Trainer):
    """Does something around a run."""

    def train(self, *given, **named):
        return super().train(*given, **named)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        pytest.param(Overriding, {}, "`train` is overridden in Overriding", id="train"),
        pytest.param(Trainer, {"auto_find_batch_size": True}, "`auto_find_batch_size=True`", id="several fits"),
    ],
)
def test_runs_that_are_not_one_fit(tmp_path, kind, fields, text):
    """They cannot be taken apart, and say why."""
    trainer = kind(model(), two_epochs(tmp_path, **fields), train_dataset=TRAIN, eval_dataset=HELD_OUT)
    with pytest.raises(NotSupportedError, match=text):
        to_lightning(trainer)


def test_an_error_ends_the_run(tmp_path):
    """After an error in the fit the Trainer is as after one in ``train``: not in training, and without stand-ins."""

    class Failing(HFModule):
        def compute_loss(self, *given, **named):
            raise ZeroDivisionError

    trainer = Trainer(model(), two_epochs(tmp_path), train_dataset=TRAIN, eval_dataset=HELD_OUT)
    lightning_trainer, _, data = to_lightning(trainer)
    with pytest.raises(ZeroDivisionError):
        lightning_trainer.fit(Failing(trainer.model), datamodule=data)
    assert not trainer.lightning_backend.trains
    assert "compute_loss" not in vars(trainer)
    trainer.train()
    assert trainer.state.global_step == 8


@pytest.mark.parametrize("ours", [False, True], ids=["by hand", "to_lightning"])
@pytest.mark.parametrize("call", ["fit", "validate", "test", "predict"])
def test_interrupt_reaches_the_user(call, ours, tmp_path):
    """Ctrl-C is a KeyboardInterrupt, as in ``train`` and ``evaluate``; SIGINT is handled as before, and calls work."""

    class Pressed(HFModule):
        is_pressed = True

        def _press(self, *given, **named):
            if self.is_pressed:
                os.kill(os.getpid(), signal.SIGINT)

    def pieces():
        if ours:
            parts = to_lightning(Trainer(model(), args, train_dataset=TRAIN, eval_dataset=HELD_OUT))
            lightning_trainer, data = parts[0], HFDataModule(args, TRAIN, HELD_OUT, HELD_OUT)
        else:
            lightning_trainer, data = plain_trainer(*callbacks(args)), HFDataModule(args, TRAIN, HELD_OUT, HELD_OUT)
        return getattr(lightning_trainer, call), data

    args = two_epochs(tmp_path, eval_strategy="no")
    module = Pressed(model(), args)
    module.model.register_forward_pre_hook(module._press)
    handler = signal.getsignal(signal.SIGINT)
    method, data = pieces()
    for _ in range(1 if call == "fit" else 2):
        with pytest.raises(KeyboardInterrupt) as caught:
            method(module, datamodule=data)
        assert caught.traceback[-1].name == "_press"
        assert signal.getsignal(signal.SIGINT) is handler
    module.is_pressed = False
    if call == "fit":
        method, data = pieces()
    method(module, datamodule=data)
    assert vars(method.__self__).get("_teardown") is None


def test_a_run_between_taking_apart_and_the_fit(tmp_path):
    """The fit of the pieces steps with the strategy of its own ``lightning.Trainer``, whatever ran before."""
    trainer = Trainer(model(), two_epochs(tmp_path / "one"), train_dataset=TRAIN, eval_dataset=HELD_OUT)
    lightning_trainer, module, data = to_lightning(trainer)
    trainer.train()
    trainer.model.load_state_dict(model().state_dict())
    trainer.optimizer = trainer.lr_scheduler = None
    seen = []

    class Watches(lightning.Callback):
        def on_train_batch_end(self, pl_trainer, *_):
            seen.append(trainer.lightning_backend.strategy is pl_trainer.strategy)

    lightning_trainer.callbacks.insert(1, Watches())
    set_seed(trainer.args.seed)
    lightning_trainer.fit(module, datamodule=data)
    assert seen
    assert all(seen)
    assert ended(trainer) == end_of_train(tmp_path / "two")
