"""Keywords of ``lightning.Trainer`` that say what training arguments say, or how much of its data a run reads."""

import contextlib
import copy
import csv
import dataclasses
import importlib.util
import re
import threading

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, TransformerEnginePrecision
from torch.utils.data import DataLoader

from hf_compat import Trainer, TrainingArguments, lightning_keywords
from hf_compat.arguments import checks
from hf_compat.errors import ArgumentsError, DataError, HFCompatWarning, MissingPackageError, TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, Stream, vector_rows
from tests.support.keyword_runs import (
    Batches,
    Plain,
    assert_same_weights,
    losses,
    train_alike,
    trainer_of_12,
    weights,
)
from tests.support.trainers import arguments

DTYPES = {"64-true": torch.float64, 64: torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}

WHOLE = 2 * 6
"""Update steps of a run: two epochs of six batches."""


# Precision


@pytest.mark.parametrize("precision", [32, "32", "32-true", None])
def test_full_precision_is_the_default(tmp_path, precision):
    """Lightning's names of full precision change nothing: the arguments stay the user's own object."""
    named, plain = trainer_of_12(tmp_path, {"precision": precision}), trainer_of_12(tmp_path)
    given = named.args
    train_alike(named, plain)
    assert named.args is given
    assert losses(named) == losses(plain)
    assert named.accelerator.mixed_precision == named.args.mixed_precision == "no"


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_mixed_precision_is_the_field(tmp_path, precision):
    """``"bf16-mixed"`` is ``bf16=True``: the same losses, in a copy of the arguments."""
    given = arguments(tmp_path, logging_steps=1)
    torch.manual_seed(0)
    model, rows = PlainModel(), ListDataset(vector_rows(12))
    named = Trainer(copy.deepcopy(model), given, train_dataset=rows, lightning={"precision": precision})
    field = Trainer(copy.deepcopy(model), dataclasses.replace(given, bf16=True), train_dataset=rows)
    train_alike(named, field)
    assert losses(named) == losses(field)
    assert (given.bf16, given.mixed_precision) == (False, "no")
    assert (named.args.bf16, named.args.mixed_precision) == (True, "bf16")
    assert named.accelerator.mixed_precision == "bf16"
    (saved,) = tmp_path.glob("checkpoint-*/training_args.bin")
    assert torch.load(saved, weights_only=False).bf16


@pytest.mark.parametrize("precision", [16, "16", "16-mixed"])
def test_half_precision_on_a_cpu_warns_as_the_field_does(tmp_path, precision):
    """``"16-mixed"`` is ``fp16=True``, which on the CPU computes in float32 and says so."""
    with pytest.warns(HFCompatWarning, match="float16 needs a GPU"):
        named = trainer_of_12(tmp_path, {"precision": precision})
    train_alike(named)
    plain = trainer_of_12(tmp_path)
    train_alike(plain)
    assert named.args.fp16
    assert losses(named) == losses(plain)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*does not have many workers", "ignore:.*logging interval")
@pytest.mark.parametrize("precision", DTYPES)
def test_true_precision_trains_as_a_minimal_lightning_trainer(tmp_path, precision):
    """The model is in the dtype, its inputs are converted, and the weights are those of Lightning's own loop."""
    torch.manual_seed(0)
    model, rows = PlainModel(dropout=0.0), vector_rows(12)
    module = Plain(copy.deepcopy(model))
    trainer = trainer_of_12(
        tmp_path,
        {"precision": precision},
        model=model,
        train=ListDataset(rows),
        train_sampling_strategy="sequential",
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        optim="sgd",
    )
    train_alike(trainer)
    reference = pl.Trainer(
        precision=precision,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    collated = DataLoader(ListDataset(rows), batch_size=2, collate_fn=trainer.data_collator)
    reference.fit(module, collated)
    dtype = DTYPES[precision]
    assert all(value.isfinite().all() for value in trainer.model.parameters())
    assert {value.dtype for value in trainer.model.state_dict().values()} == {dtype}
    assert_same_weights(weights(trainer.model), weights(module.model))
    assert trainer.args.mixed_precision == trainer.accelerator.mixed_precision == "no"
    assert trainer.predict(ListDataset(rows)).metrics["test_loss"] > 0
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("plugin", [HalfPrecision("bf16-true"), DoublePrecision()], ids=["half", "double"])
def test_a_true_precision_plugin_is_that_precision(tmp_path, plugin):
    """Lightning's own plugin of a true precision does what the keyword does."""
    by_plugin = trainer_of_12(tmp_path, {"plugins": [plugin]})
    by_name = trainer_of_12(tmp_path, {"precision": plugin.precision})
    train_alike(by_plugin, by_name)
    assert_same_weights(weights(by_plugin.model), weights(by_name.model))


class WithoutItsPackage(TransformerEnginePrecision):
    """Lightning's plugin for Transformer Engine, its layers and its autocast left out: those need a GPU."""

    def __init__(self):
        self.weights_dtype, self.replace_layers = torch.bfloat16, False

    def forward_context(self):
        return contextlib.nullcontext()


def test_a_precision_plugin_converts_model_and_inputs(tmp_path):
    """A plugin with conversions of its own has them applied to the model, and to the inputs of each forward pass."""
    by_plugin, by_name = (
        trainer_of_12(tmp_path, keywords)
        for keywords in ({"plugins": [WithoutItsPackage()]}, {"precision": "bf16-true"})
    )
    train_alike(by_plugin, by_name)
    assert_same_weights(weights(by_plugin.model), weights(by_name.model))
    assert losses(by_plugin) == losses(by_name)
    assert by_plugin.evaluate()["eval_loss"] == by_name.evaluate()["eval_loss"]


def test_true_precision_resumes(tmp_path):
    """A run in bfloat16 that is resumed ends as one that was never interrupted, and saves bfloat16."""
    keywords = {"precision": "bf16-true"}
    saving = {"save_strategy": "steps", "save_steps": 5}
    whole = trainer_of_12(tmp_path / "whole", keywords, **saving)
    train_alike(whole)
    resumed = trainer_of_12(tmp_path / "whole", keywords, **saving)
    train_alike(resumed, resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert_same_weights(weights(whole.model), weights(resumed.model))


def test_evaluation_before_training_has_the_precision(tmp_path):
    """``evaluate`` alone converts the model too."""
    trainer = trainer_of_12(tmp_path, {"precision": "64-true"})
    trainer.evaluate()
    assert {value.dtype for value in trainer.model.parameters()} == {torch.float64}


@pytest.mark.skipif(importlib.util.find_spec("transformer_engine") is not None, reason="the package is installed")
@pytest.mark.parametrize("precision", ["transformer-engine", "transformer-engine-float16"])
def test_transformer_engine_needs_its_package(tmp_path, precision):
    """Without the package the error says how to install it."""
    with pytest.raises(MissingPackageError, match=rf"'{precision}'.*pip install"):
        trainer_of_12(tmp_path, {"precision": precision})


# Contradictions


@pytest.mark.parametrize(
    ("keywords", "fields", "names"),
    [
        ({"precision": "32-true"}, {"bf16": True}, r"'precision': '32-true'.*`bf16=True`"),
        ({"precision": "bf16-true"}, {"bf16": True}, r"'precision': 'bf16-true'.*`bf16=True`"),
        ({"precision": "16-mixed"}, {"bf16": True}, r"'precision': '16-mixed'.*`bf16=True`"),
        ({"max_epochs": 3}, {"num_train_epochs": 2}, r"'max_epochs': 3.*`num_train_epochs=2`"),
        ({"max_steps": 3}, {"max_steps": 2}, r"'max_steps': 3.*`max_steps=2`"),
        ({"accumulate_grad_batches": 4}, {"gradient_accumulation_steps": 2}, "`gradient_accumulation_steps=2`"),
        ({"gradient_clip_val": 0.1}, {"max_grad_norm": 0.5}, "`max_grad_norm=0.5`"),
        ({"enable_checkpointing": False}, {"save_strategy": "epoch"}, "`save_strategy='epoch'`"),
        ({"val_check_interval": 1.0}, {"eval_strategy": "steps"}, "`eval_strategy='steps'`"),
        ({"limit_val_batches": 0}, {"eval_strategy": "epoch"}, "`eval_strategy='epoch'`"),
        ({"overfit_batches": 2}, {"train_sampling_strategy": "group_by_length"}, "`train_sampling_strategy="),
    ],
)
def test_what_contradicts_a_field_is_refused(tmp_path, keywords, fields, names):
    """A keyword beside a field that says something else is refused, and both are named."""
    with pytest.raises(TrainerSetupError, match=names):
        trainer_of_12(tmp_path, keywords, **fields)


def test_what_agrees_with_a_field_is_not_refused(tmp_path):
    """A keyword that says what the field says changes nothing."""
    trainer = trainer_of_12(tmp_path, {"max_epochs": 2, "precision": "bf16-mixed"}, num_train_epochs=2, bf16=True)
    assert trainer.args.num_train_epochs == 2


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"precision": "8"}, "'precision': '8'.* is not one of"),
        ({"limit_train_batches": 1.5}, "'limit_train_batches': 1.5.*fraction from 0.0 to 1.0"),
        ({"limit_val_batches": -1}, "'limit_val_batches': -1"),
        ({"max_epochs": -1}, "'max_epochs': -1.*`max_steps`"),
        ({"max_epochs": -5}, "'max_epochs': -5.*pass a number of epochs"),
        ({"max_epochs": "2"}, "'max_epochs': '2'.*pass a number of epochs"),
        ({"max_steps": None}, "'max_steps': None.*pass a number of update steps"),
        ({"max_steps": 1.5}, "'max_steps': 1.5.*pass a number of update steps"),
        ({"accumulate_grad_batches": 0}, "'accumulate_grad_batches': 0.*pass a number of batches, 1 or more"),
        ({"enable_checkpointing": "no"}, "'enable_checkpointing': 'no'.*pass True, False or None"),
        ({"enable_progress_bar": 0}, "'enable_progress_bar': 0.*pass True, False or None"),
        ({"logger": "csv"}, "'logger': 'csv'.*pass a Lightning logger.*`report_to`"),
        ({"logger": ["csv"]}, r"'logger': \['csv'\].*pass a Lightning logger"),
        ({"profiler": "simpel"}, "'profiler': 'simpel'.*pass a Lightning profiler, or one of 'simple', 'advanced'"),
        ({"profiler": True}, "'profiler': True.*pass a Lightning profiler"),
        ({"precision": "bf16-true", "plugins": [DoublePrecision()]}, "both set the precision"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, keywords, message):
    """Values that mean nothing are refused before anything runs."""
    with pytest.raises(TrainerSetupError, match=message):
        trainer_of_12(tmp_path, keywords)


@pytest.mark.parametrize(
    ("keywords", "fields", "message"),
    [
        ({"precision": "bf16-mixed"}, {}, r"^  `lightning=\{'precision': 'bf16-mixed'\}`: Your setup doesn't support"),
        (
            {"val_check_interval": 1.0},
            {"load_best_model_at_end": True, "save_strategy": "no"},
            r"^  `load_best_model_at_end=True`: .*`eval_strategy` is 'epoch'.* Set by .*'val_check_interval': 1.0\}`\.",
        ),
        (
            {"enable_checkpointing": False},
            {"load_best_model_at_end": True, "eval_strategy": "steps"},
            r"^  `load_best_model_at_end=True`: .*`save_strategy` is 'no'.* "
            r"Set by .*'enable_checkpointing': False\}`\.",
        ),
    ],
    ids=["precision", "interval", "checkpointing"],
)
def test_a_field_that_a_keyword_sets_is_named_by_the_keyword(tmp_path, keywords, fields, message, monkeypatch):
    """An error of a field that the user has not set names the keyword that the user wrote."""
    monkeypatch.setattr(checks, "accelerator_type", lambda: None)
    args = TrainingArguments(str(tmp_path), report_to="none", **fields)
    with pytest.raises(ArgumentsError) as caught:
        Trainer(PlainModel(), args, lightning=keywords)
    assert re.search(message, str(caught.value), re.MULTILINE)


# What fields say


@pytest.mark.parametrize(
    ("keywords", "fields"),
    [
        ({"max_epochs": 1}, {"num_train_epochs": 1}),
        ({"max_steps": 4}, {"max_steps": 4}),
        ({"accumulate_grad_batches": 4}, {"gradient_accumulation_steps": 4}),
        ({"gradient_clip_val": 0.01}, {"max_grad_norm": 0.01}),
        ({"gradient_clip_val": 0}, {"max_grad_norm": 0.0}),
        ({"val_check_interval": 1.0}, {"eval_strategy": "epoch"}),
        ({"check_val_every_n_epoch": 1}, {"eval_strategy": "epoch"}),
        ({"val_check_interval": 4, "check_val_every_n_epoch": None}, {"eval_strategy": "steps", "eval_steps": 4}),
    ],
)
def test_a_keyword_is_its_field(tmp_path, keywords, fields):
    """A run with the keyword logs what one with the field logs, and its arguments have the field's value."""
    named, meant = (
        trainer_of_12(tmp_path, lightning, **{"num_train_epochs": 3.0} | given)
        for lightning, given in ((keywords, {}), (None, fields))
    )
    train_alike(named, meant)
    names = ("loss", "learning_rate", "eval_loss", "epoch", "step", "grad_norm")
    histories = [[{n: e[n] for n in names if n in e} for e in t.state.log_history] for t in (named, meant)]
    assert histories[0] == histories[1]
    assert {name: getattr(named.args, name) for name in fields} == fields


def test_no_checkpoints(tmp_path):
    """``enable_checkpointing=False`` saves none, where the default saves the last update step."""
    trainer = trainer_of_12(tmp_path, {"enable_checkpointing": False}, save_strategy="steps")
    train_alike(trainer)
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_the_first_of_two_ends(tmp_path):
    """With ``max_epochs`` and ``max_steps`` the run, and its schedule, end with the first of them."""
    trainer = trainer_of_12(tmp_path, {"max_epochs": 1, "max_steps": 100}, num_train_epochs=3.0)
    train_alike(trainer)
    assert trainer.state.global_step == trainer.state.max_steps == 6
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}
    trainer = trainer_of_12(tmp_path, {"max_epochs": 50, "max_steps": 4}, num_train_epochs=3.0)
    train_alike(trainer)
    assert trainer.state.global_step == 4


# How much of the data is read


@pytest.mark.parametrize(("share", "steps"), [(2, 2), (0.5, 3), (0.9, 5), (1.0, 6), (100, 6), (1, 1)])
def test_update_steps_of_an_epoch(tmp_path, share, steps):
    """``limit_train_batches`` is a number of update steps, or a fraction rounded down; the schedule knows."""
    trainer = trainer_of_12(tmp_path, {"limit_train_batches": share})
    train_alike(trainer)
    assert trainer.state.global_step == trainer.state.max_steps == 2 * steps
    assert trainer.state.epoch == 2.0
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}
    whole = trainer_of_12(tmp_path, lr_scheduler_type="constant")
    part = trainer_of_12(tmp_path, {"limit_train_batches": share}, lr_scheduler_type="constant")
    train_alike(whole, part)
    assert losses(part)[:steps] == losses(whole)[:steps]
    if steps < 6:
        assert part.state.log_history[steps]["epoch"] == pytest.approx(1 + 1 / steps)


def test_update_steps_are_windows(tmp_path):
    """Accumulation counts: of 6 batches in windows of 2, one update step a window."""
    trainer = trainer_of_12(tmp_path, {"limit_train_batches": 2, "accumulate_grad_batches": 2})
    train_alike(trainer)
    assert trainer.state.global_step == 4
    assert trainer.run_plan.batches_per_epoch == 4
    assert trainer.run_plan.num_examples == 8


def test_max_steps_over_limited_epochs(tmp_path):
    """``max_steps`` takes as many of the shorter epochs as it needs."""
    trainer = trainer_of_12(tmp_path, {"limit_train_batches": 2}, max_steps=5)
    train_alike(trainer)
    assert (trainer.state.global_step, trainer.state.epoch) == (5, 2.5)


def test_a_stream_is_limited_too(tmp_path):
    """Of data without length, an epoch ends after the number; a fraction is an error."""
    settings = {"train": Stream(vector_rows(12)), "max_steps": 5}
    trainer = trainer_of_12(tmp_path, {"limit_train_batches": 2}, **settings)
    train_alike(trainer)
    whole = trainer_of_12(tmp_path, **settings)
    train_alike(whole)
    assert trainer.state.global_step == 5
    assert trainer.state.epoch == 2.5
    assert losses(trainer)[:2] == losses(whole)[:2]
    with pytest.raises(DataError, match=r"'limit_train_batches': 0.5.*no length"):
        trainer_of_12(tmp_path, {"limit_train_batches": 0.5}, **settings).train()


@pytest.mark.parametrize("share", [0, 0.01])
def test_no_update_step_is_an_error(tmp_path, share):
    """A limit that leaves nothing to train on is told."""
    with pytest.raises(DataError, match=f"'limit_train_batches': {share}"):
        trainer_of_12(tmp_path, {"limit_train_batches": share}).train()


@pytest.mark.parametrize("at", [2, 3, 4])
def test_limited_epochs_resume(tmp_path, at):
    """A run over parts of epochs that is resumed, in an epoch or between two, ends as one never interrupted."""
    keywords = {"limit_train_batches": 3}
    saving = {"save_strategy": "steps", "save_steps": 1}
    whole = trainer_of_12(tmp_path, keywords, **saving)
    train_alike(whole)
    resumed = trainer_of_12(tmp_path, keywords, **saving)
    train_alike(resumed, resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert losses(resumed) == losses(whole)
    assert_same_weights(weights(whole.model), weights(resumed.model))


def test_limited_epochs_resume_with_other_windows(tmp_path):
    """Resumed with twice the accumulation, the rest of a limited epoch and the next one are left."""
    keywords = {"limit_train_batches": 4}
    trainer_of_12(tmp_path, keywords, save_strategy="steps", save_steps=2).train()
    other = {"limit_train_batches": 2}
    resumed = trainer_of_12(tmp_path, other, save_strategy="steps", gradient_accumulation_steps=2)
    train_alike(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 2 + 1 + 2
    assert resumed.state.epoch == 2.0


@pytest.mark.parametrize(("share", "batches"), [(2, 2), (0.5, 2), (1.0, 5), (9, 5)])
def test_batches_of_an_evaluation(tmp_path, share, batches):
    """``limit_val_batches`` holds for each evaluation: its loss and its speed are those of so many samples."""
    callback = Batches()
    trainer = trainer_of_12(tmp_path, {"limit_val_batches": share}, callbacks=[callback], eval_strategy="epoch")
    train_alike(trainer)
    assert callback.predicted == 2 * batches
    metrics = trainer.evaluate()
    samples = min(2 * batches, 9)
    first = trainer_of_12(tmp_path, model=trainer.model)
    expected = first.evaluate(ListDataset(vector_rows(9, seed=1)[:samples]))
    assert metrics["eval_loss"] == expected["eval_loss"]
    assert metrics["eval_samples_per_second"] * metrics["eval_runtime"] == pytest.approx(samples, rel=0.1)


def test_a_prediction_is_limited_by_its_own_keywords(tmp_path):
    """``limit_predict_batches``, else ``limit_test_batches``, is that of ``predict``."""
    rows = ListDataset(vector_rows(9, seed=1))
    assert len(trainer_of_12(tmp_path, {"limit_test_batches": 2}).predict(rows).predictions) == 4
    assert len(trainer_of_12(tmp_path, {"limit_predict_batches": 0.6}).predict(rows).predictions) == 6
    assert len(trainer_of_12(tmp_path, {"limit_val_batches": 1}).predict(rows).predictions) == 9


def test_overfitting_reads_the_same_batches_in_order(tmp_path):
    """``overfit_batches`` trains on the first batches again and again, unshuffled, and evaluates as many."""
    callback = Batches()
    trainer = trainer_of_12(tmp_path, {"overfit_batches": 2}, callbacks=[callback], eval_strategy="epoch")
    train_alike(trainer)
    assert callback.predicted == 2 * 2
    rows = ListDataset(vector_rows(4))
    part = trainer_of_12(tmp_path, train=rows, train_sampling_strategy="sequential", eval_strategy="epoch")
    train_alike(part)
    assert losses(trainer) == losses(part)


def steps(trainer):
    """Return how many update steps ``trainer`` makes."""
    trainer.train()
    return trainer.state.global_step


def test_a_logger_of_lightnings_writes_what_the_trainer_logs(tmp_path):
    """A Trainer that was made in the block has the logger, also when it trains after the block."""
    with lightning_keywords(logger=CSVLogger(tmp_path, name="", version="")):
        trainer = trainer_of_12(tmp_path)
    train_alike(trainer)
    with (tmp_path / "metrics.csv").open() as file:
        written = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert written == pytest.approx(losses(trainer))
    assert len(written) == WHOLE


def made_in_another_thread(folder):
    """Return a Trainer that a thread makes while this one is in a block, which an error ends."""
    found = []
    with lightning_keywords(limit_train_batches=1):
        other = threading.Thread(target=lambda: found.append(trainer_of_12(folder)))
        other.start()
        other.join()
        raise KeyError(*found)


def test_outside_of_the_block_there_are_none(tmp_path):
    """A Trainer that is made before, after or in another thread is as ever, and so it is after an error."""
    before = trainer_of_12(tmp_path)
    with pytest.raises(KeyError) as stopped:
        made_in_another_thread(tmp_path)
    assert [steps(trainer) for trainer in (before, *stopped.value.args, trainer_of_12(tmp_path))] == [WHOLE] * 3


def test_the_nearest_is_taken(tmp_path):
    """An inner block's keyword stands before an outer one's, a Trainer's own before both; others stay."""
    with lightning_keywords(limit_train_batches=3, profiler="simple"):
        with lightning_keywords(limit_train_batches=2):
            inner, own = trainer_of_12(tmp_path), trainer_of_12(tmp_path, {"limit_train_batches": 1})
        outer = trainer_of_12(tmp_path)
    assert [steps(trainer) for trainer in (outer, inner, own)] == [2 * 3, 2 * 2, 2 * 1]
    assert type(own.lightning_trainer.profiler).__name__ == "SimpleProfiler"


def test_a_keyword_that_there_is_not_is_refused(tmp_path):
    """A Trainer that is made in the block says which keyword, as for one of its own."""
    with lightning_keywords(loger=False), pytest.raises(TrainerSetupError, match="logger"):
        trainer_of_12(tmp_path)
