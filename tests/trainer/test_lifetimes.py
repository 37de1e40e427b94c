"""The four lifetimes: what Trainer, runtime, run and fit leave behind, and what goes with a pickle or a copy."""

import copy
import gc
import json
import os
import pickle
import weakref
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from torchmetrics.classification import MulticlassAccuracy

import hf_compat
from hf_compat import Seq2SeqTrainer, Trainer, to_lightning
from hf_compat.errors import CallbackError
from tests.support import trainers
from tests.support.freeing import SAVING, SITUATIONS, KeepsAll, Situation, failed, held_after, trains, without_collector
from tests.support.helpers import ListDataset, vector_rows
from tests.support.paths import FACTS_FOLDER

new_trainer = partial(trainers.new_trainer, max_steps=2, save_strategy="no", logging_steps=1)

API = json.loads((FACTS_FOLDER / "trainer_api.json").read_text())


def losses(trainer):
    """Return the logged losses."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# Pickling


def test_a_pickled_trainer_trains_on(tmp_path):
    """After a training and an evaluation a Trainer pickles, and its copy trains as itself does."""
    trainer = new_trainer(tmp_path)
    trainer.train()
    trainer.evaluate()
    twin = pickle.loads(pickle.dumps(trainer))
    assert (twin.lightning_trainer, twin.lightning_module) == (None, None)
    histories = []
    for each in (trainer, twin):
        torch.manual_seed(1)
        each.train()
        histories.append(losses(each))
    assert histories[0] == histories[1] != []
    for left, right in zip(trainer.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_copied_trainer_has_no_run(tmp_path):
    """``copy.copy``, by which a search sends a Trainer to other processes, leaves the run behind."""
    trainer = new_trainer(tmp_path)
    trainer.train()
    twin = copy.copy(trainer)
    assert twin.model is trainer.model
    assert twin.training_run is None
    assert trainer.training_run is not None


def test_a_copied_trainer_counts_for_itself(tmp_path):
    """What upstream keeps as attributes of a Trainer is a copy's own, too, as all attributes are."""
    trainer = new_trainer(tmp_path, per_device_train_batch_size=2)
    twin = copy.copy(trainer)
    twin._train_batch_size, twin._trial, twin.current_flos = 4, {"seed": 1}, 3.0
    assert (trainer._train_batch_size, trainer._trial, trainer.current_flos) == (2, None, 0)
    assert (twin._train_batch_size, twin._trial, twin.current_flos) == (4, {"seed": 1}, 3.0)
    assert pickle.loads(pickle.dumps(twin))._train_batch_size == 4


def test_an_attribute_that_is_unset(tmp_path):
    """An attribute that upstream's Trainer does not always have is missing by its own name, and may be deleted."""
    trainer = new_trainer(tmp_path)
    with pytest.raises(AttributeError, match=r"^'Trainer' object has no attribute '_past'$"):
        _ = trainer._past
    assert not hasattr(Trainer.__new__(Trainer), "_train_batch_size")
    trainer._past = None
    assert trainer._past is None
    del trainer._past
    assert not hasattr(trainer, "_past")
    assert not hasattr(pickle.loads(pickle.dumps(trainer)), "_past")


# Copies of the module


class Copies(pl.Callback):
    """Keeps a deep copy of the module of each update step, as weight averaging does."""

    def __init__(self):
        self.copies = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        """Copy the module."""
        self.copies.append(copy.deepcopy(pl_module))


def test_a_callback_that_copies_the_module_copies_no_trainer(tmp_path):
    """The module refers to its run weakly: copies hold weights, not the Trainer and its data."""
    callback = Copies()
    trainer = new_trainer(tmp_path, callbacks=[callback])
    gc.collect()
    before = sum(type(item) is Trainer for item in gc.get_objects())
    trainer.train()
    gc.collect()
    assert sum(type(item) is Trainer for item in gc.get_objects()) == before
    assert len(callback.copies) == 2
    weights = [next(one.parameters()) for one in callback.copies]
    assert not torch.equal(*weights)
    assert next(callback.copies[-1].parameters()).data_ptr() != next(trainer.model.parameters()).data_ptr()


# Freed with its last user


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_trainer_is_freed_with_its_last_user(name, tmp_path):
    """``del trainer`` frees at once, without the collector, what it frees under upstream: no part holds the whole."""
    held = {library: held_after(library, tmp_path / library.__name__, SITUATIONS[name]) for library in LIBRARIES}
    assert held[hf_compat] <= held[transformers]
    assert held[hf_compat] == set() or name in CIRCLES_OF_OTHERS


LIBRARIES = (transformers, hf_compat)
CIRCLES_OF_OTHERS = {
    "failed in workers": "torch's loader raises again what a worker has sent, in a frame that the error refers to",
    "bf16": "accelerate's forward under autocast, which ours has as well, refers to the model that has it",
}
"""Situations after which something stays for the collector under both, and what."""

LOGGED = {"lightning": {"logger": CSVLogger("unused", version=0)}}
OWN: dict[str, Situation] = {
    "saved in the background": Situation(trains, SAVING | {"save_async": True}),
    "torchmetrics": Situation(
        lambda trainer: (trains(trainer), trainer.predict(trainer.eval_dataset)),
        SAVING,
        given={"compute_metrics": MulticlassAccuracy(3)},
    ),
    "profiler": Situation(trains, given={"lightning": {"profiler": "simple"}}),
    "sanity check": Situation(trains, SAVING, given={"lightning": {"num_sanity_val_steps": 1}}),
    "reloading": Situation(trains, {"max_steps": 5}, given={"lightning": {"reload_dataloaders_every_n_epochs": 1}}),
    "Lightning callback": Situation(trains, SAVING, lambda _: KeepsAll()),
    "Lightning callback fails": Situation(failed(trains), callback=lambda _: KeepsAll(fails=True)),
    "early stopping": Situation(trains, SAVING, lambda _: pl.callbacks.EarlyStopping("eval_loss")),
    "progress bar": Situation(trains, SAVING, lambda _: pl.callbacks.TQDMProgressBar()),
    "rich progress bar": Situation(trains, SAVING, lambda _: pl.callbacks.RichProgressBar()),
    "rate monitor": Situation(trains, SAVING, lambda _: pl.callbacks.LearningRateMonitor(), given=LOGGED),
}


@pytest.mark.parametrize("name", OWN)
def test_a_trainer_with_parts_of_lightning_is_freed_with_its_last_user(name, tmp_path, monkeypatch):
    """So it is with what upstream has not, although a ``lightning.Trainer`` consists of circles."""
    monkeypatch.chdir(tmp_path)
    assert held_after(hf_compat, tmp_path, OWN[name]) == set()


def test_another_run_frees_the_one_before(tmp_path):
    """A second ``train`` drops Lightning's trainer of the first, with its strategy, as it makes its own."""
    trainer = new_trainer(tmp_path)
    with without_collector():
        trainer.train()
        gone = [
            weakref.ref(part) for part in (trainer.lightning_trainer, trainer.lightning_module, trainer.training_run)
        ]
        trainer.train()
        assert [part() for part in gone] == [None, None, None]


def test_lightnings_trainer_outlives_the_trainer(tmp_path):
    """Who keeps ``lightning_trainer`` alone has its metrics, callbacks, strategy and model, but no data."""
    data = ListDataset(vector_rows(8))
    trainer = new_trainer(tmp_path, train_dataset=data, callbacks=[KeepsAll()], eval_strategy="steps", eval_steps=1)
    trainer.train()
    lightning_trainer, module, model = trainer.lightning_trainer, trainer.lightning_module, trainer.model
    before = {name: value.item() for name, value in lightning_trainer.callback_metrics.items()}
    with without_collector():
        gone = weakref.ref(trainer)
        del trainer
        assert gone() is None
    assert {name: value.item() for name, value in lightning_trainer.callback_metrics.items()} == before != {}
    assert lightning_trainer.lightning_module is module
    assert module.model is model
    assert lightning_trainer.global_step == 2
    assert lightning_trainer.fit_loop.trainer.global_step == 2


def test_a_trainer_that_nobody_holds_trains_to_the_end(tmp_path):
    """A running fit keeps its Trainer; methods of the user's that its run calls get the Trainer itself."""
    seen = []

    class Own(Trainer):
        def training_step(self, *given, **named):
            seen.append(type(self))
            return super().training_step(*given, **named)

    assert new_trainer(tmp_path, Own).train().global_step == 2
    assert seen == [Own, Own]


def test_a_function_in_the_place_of_a_method_goes_with_its_trainer(tmp_path):
    """One that refers to the Trainer is kept by nothing else, so that the garbage collector finds both."""

    def compute_loss_of(held):
        return lambda model, inputs, **named: type(held).compute_loss(held, model, inputs, **named)

    trainer = new_trainer(tmp_path)
    trainer.compute_loss = compute_loss_of(trainer)
    trainer.train()
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_a_run_taken_apart_keeps_its_trainer(tmp_path):
    """Who holds the pieces alone can fit them: Lightning's trainer owns the Trainer there."""
    pieces = to_lightning(new_trainer(tmp_path))
    gc.collect()
    lightning_trainer, module, data = pieces
    lightning_trainer.fit(module, datamodule=data)
    assert lightning_trainer.callbacks[-1].output.global_step == 2


# The optimizer


def test_the_optimizer_is_in_one_wrapper_and_goes_with_its_last_reference(tmp_path):
    """``trainer.optimizer.optimizer``, upstream's way to the wrapped optimizer, has none and goes with its own."""
    trainer = new_trainer(tmp_path)
    trainer.train()
    assert trainer.optimizer.optimizer.param_groups is trainer.optimizer.param_groups
    assert not hasattr(trainer.optimizer.optimizer, "optimizer")
    assert pickle.loads(pickle.dumps(trainer.optimizer)).defaults == trainer.optimizer.defaults
    assert copy.deepcopy(trainer.optimizer).defaults == trainer.optimizer.defaults
    optimizer, gone = trainer.optimizer, weakref.ref(trainer.optimizer.optimizer)
    with without_collector():
        del trainer
        assert gone() is not None
        del optimizer
        assert gone() is None


# Attributes

READ_ONLY = {"tokenizer": "another name of `processing_class`, which is assigned as well"}


@pytest.mark.parametrize("name", sorted(set(API["attributes"]) - set(READ_ONLY)))
def test_attributes_are_kept_wherever_they_are_assigned(name, tmp_path):
    """What a subclass assigns on its class or before or after ``super().__init__()`` is read back.

    Before, unless the constructor itself sets it, as upstream's does.
    """
    marker = object()

    class Before(Seq2SeqTrainer):
        def __init__(self, *given, **named):
            setattr(self, name, marker)
            assert getattr(self, name) is marker
            super().__init__(*given, **named)

    class After(Seq2SeqTrainer):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            setattr(self, name, marker)

    on_class = type("OnClass", (Seq2SeqTrainer,), {name: marker})
    assert getattr(new_trainer(tmp_path, After), name) is marker
    set_by_constructor = getattr(new_trainer(tmp_path, Seq2SeqTrainer), name, marker)
    trainers = [new_trainer(tmp_path, kind) for kind in (Before, on_class)]
    for trainer in trainers:
        assert getattr(trainer, name) is marker or type(getattr(trainer, name)) is type(set_by_constructor)
    kept = vars(Trainer).get(name)
    if name in vars(Trainer) and name not in SET_BY_CONSTRUCTOR and not hasattr(kept, "__get__"):
        assert all(getattr(trainer, name) is marker for trainer in trainers)


SET_BY_CONSTRUCTOR = {
    "is_deepspeed_enabled",
    "is_fsdp_enabled",
    "is_model_parallel",
    "is_tp_enabled",
    "neftune_noise_alpha",
    "place_model_on_device",
    "_loss_shifts_labels",
}
"""Class-level defaults that the constructor replaces, as upstream's does."""


# Overrides on the instance


def test_methods_assigned_on_an_instance_are_called(tmp_path):
    """``trainer.log = f`` replaces the method for the run under way: nothing keeps a bound method over a call."""
    trainer = new_trainer(tmp_path, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1)
    called = []
    names = (
        "compute_loss",
        "evaluate",
        "get_batch_samples",
        "get_train_dataloader",
        "log",
        "save_model",
        "training_step",
        "_clip_grad_norm",
        "_evaluate",
        "_finalize_training",
        "_inner_training_loop",
        "_maybe_log_save_evaluate",
        "_rotate_checkpoints",
        "_save_checkpoint",
        "_save_optimizer_and_scheduler",
        "create_optimizer",
    )
    for name in names:
        setattr(trainer, name, recorded(getattr(trainer, name), name, called))
    trainer.train()
    assert set(called) == set(names)
    assert called.count("training_step") == called.count("_save_checkpoint") == 2


def recorded(method, name, called):
    """Return ``method`` as a function that notes its calls."""

    def function(*given, **named):
        called.append(name)
        return method(*given, **named)

    return function


def test_a_method_replaced_in_the_middle_of_a_run_is_called(tmp_path):
    """What a callback assigns while the run is under way holds from then on."""
    trainer = new_trainer(tmp_path, max_steps=3)
    seen, original = [], trainer.training_step

    def step(model, inputs, num_items_in_batch=None):
        seen.append(trainer.state.global_step)
        return original(model, inputs, num_items_in_batch)

    class Replaces(pl.Callback):
        def on_train_batch_end(self, *_):
            trainer.training_step = step

    trainer.lightning_backend.callbacks.append(Replaces())
    trainer.train()
    assert seen == [1, 2]


@pytest.mark.parametrize("bar", [pl.callbacks.TQDMProgressBar, pl.callbacks.RichProgressBar])
def test_a_bar_that_outlives_its_trainer(tmp_path, bar):
    """What it reads of the trainer is an error that says what to keep; the next Trainer takes it as a new one."""
    kept = bar()
    trainer = new_trainer(tmp_path, callbacks=[kept])
    trainer.train()
    batches = kept.total_train_batches
    del trainer
    gc.collect()
    with pytest.raises(CallbackError, match=r"`trainer\.\w+`.*Keep that Trainer in a variable"):
        _ = kept.total_train_batches
    trainer = new_trainer(tmp_path, callbacks=[kept])
    trainer.train()
    assert kept.total_train_batches == batches


# A Trainer without a run


def test_methods_of_a_run_can_be_called_before_any(tmp_path):
    """What a run calls may be called by itself: a detached run answers."""
    trainer = new_trainer(tmp_path)
    trainer.create_optimizer_and_scheduler(num_training_steps=2)
    trainer._save_checkpoint(trainer.model, trial=None)
    assert sorted(os.listdir(tmp_path / "checkpoint-0")) != []
    assert trainer._evaluate(None, None)["eval_loss"] > 0
