"""Keywords of ``lightning.Trainer`` that decide how a run goes about its work: each has its meaning in a real run."""

import copy
import inspect
import warnings
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    Timer,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from hf_compat import EarlyStoppingCallback, Trainer, TrainerCallback
from hf_compat.errors import DataError, TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, Stream, vector_rows
from tests.support.keyword_runs import (
    Batches,
    Plain,
    assert_same_weights,
    evaluated_at,
    losses,
    train_alike,
    trainer_of_12,
    weights,
)
from tests.support.lightning_keywords_page import KEYWORDS, PAGE, page

SGD = {"train_sampling_strategy": "sequential", "learning_rate": 0.5, "lr_scheduler_type": "constant", "optim": "sgd"}


def minimal_trainer(**keywords):
    """Return a ``lightning.Trainer`` of two epochs that does nothing but train and validate."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return pl.Trainer(**{"max_epochs": 2, "enable_model_summary": False, "num_sanity_val_steps": 0} | quiet | keywords)


TENSORBOARD = {"report_to": "tensorboard", "semantics": "5.23"}
"""Not the default, as it may be in transformers 4.57, where that is all trackers that are installed."""


class Stops(TrainerCallback):
    """Asks for the end of training in an event, from an update step on."""

    def __init__(self, event, step):
        self.step = step
        setattr(self, event, self._stop)

    def _stop(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step >= self.step


class Gradients(TrainerCallback):
    """The largest gradient of each update step, as the optimizer sees it."""

    def __init__(self):
        self.largest = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.largest.append(max(float(one.grad.abs().max()) for one in model.parameters()))


class Forwards(PlainModel):
    """Notes of each forward pass whether it trains, and whether it is under ``torch.inference_mode``."""

    def __init__(self):
        super().__init__(dropout=0.3)
        self.seen = []

    def forward(self, features, labels):
        self.seen.append("train" if self.training else "inference" if torch.is_inference_mode_enabled() else "no_grad")
        return super().forward(features, labels)


class Spy(pl.Callback):
    """Notes the hooks of a sanity check, and the validations inside and outside of it."""

    def __init__(self):
        self.seen = []

    def on_sanity_check_start(self, trainer, pl_module):
        self.seen.append("start")

    def on_sanity_check_end(self, trainer, pl_module):
        self.seen.append("end")

    def on_validation_batch_end(self, trainer, *_):
        self.seen.append("checked" if trainer.sanity_checking else "validated")


# Clipping


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*does not have many workers", "ignore:.*logging interval")
@pytest.mark.parametrize("value", [0.01, 0])
def test_gradients_are_clipped_by_value_as_by_lightning(tmp_path, value):
    """The weights are those of Lightning's own loop with the same keywords; 0 clips nothing."""
    torch.manual_seed(0)
    model, rows = PlainModel(dropout=0.0), vector_rows(12)
    module, keywords = Plain(copy.deepcopy(model)), {"gradient_clip_val": value, "gradient_clip_algorithm": "value"}
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.5)
    gradients = Gradients()
    trainer = trainer_of_12(tmp_path, keywords, model=model, callbacks=[gradients], **SGD)
    train_alike(trainer)
    minimal_trainer(**keywords).fit(
        module, DataLoader(ListDataset(rows), batch_size=2, collate_fn=trainer.data_collator)
    )
    assert_same_weights(weights(trainer.model), weights(module.model))
    assert trainer.args.max_grad_norm == 0.0
    if value:
        assert gradients.largest == pytest.approx([value] * 12)


@pytest.mark.parametrize("semantics", ["4.57", "5.23"])
def test_the_norm_before_clipping_by_value_is_logged(tmp_path, semantics):
    """``grad_norm`` is that of a run that clips nothing, until the weights differ; all releases log it."""
    keywords = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}
    clipped = trainer_of_12(tmp_path, keywords, semantics=semantics, max_steps=1)
    plain = trainer_of_12(tmp_path, semantics=semantics, max_grad_norm=1e9, max_steps=1)
    train_alike(clipped, plain)
    assert clipped.state.log_history[0]["grad_norm"] == plain.state.log_history[0]["grad_norm"] > 0.1


def test_scaled_gradients_are_clipped_by_value_after_unscaling(tmp_path):
    """With a gradient scaler the value holds for the gradients that the optimizer sees, and so does the norm."""
    norms = []
    for value in (1e-3, None):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        keywords = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
        if value is not None:
            keywords |= {"gradient_clip_val": value, "gradient_clip_algorithm": "value"}
        gradients = Gradients()
        trainer = trainer_of_12(tmp_path, keywords, callbacks=[gradients], max_steps=2)
        train_alike(trainer)
        norms.append(trainer.state.log_history[0]["grad_norm"])
        assert value is None or gradients.largest[0] == pytest.approx(value)
    assert norms[0] == norms[1] < 100


# Evaluations


@pytest.mark.parametrize(("keywords", "outside"), [({"inference_mode": True}, "inference"), ({}, "no_grad")])
def test_evaluations_outside_a_fit_are_under_inference_mode(tmp_path, keywords, outside):
    """Only where asked for, and as in Lightning not inside a fit; training goes on after either."""
    model = Forwards()
    trainer = trainer_of_12(tmp_path, keywords, model=model, eval_strategy="epoch")
    trainer.compute_metrics = MulticlassAccuracy(num_classes=3)
    trainer.evaluate()
    assert set(model.seen) == {outside}
    model.seen.clear()
    train_alike(trainer)
    assert set(model.seen) == {"train", "no_grad"}
    model.seen.clear()
    trainer.predict(trainer.eval_dataset)
    assert set(model.seen) == {outside}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*does not have many workers", "ignore:.*logging interval")
@pytest.mark.parametrize(
    "keywords",
    [
        {"val_check_interval": 0.5},
        {"val_check_interval": 0.4},
        {"val_check_interval": 0.01},
        {"val_check_interval": 4},
        {"val_check_interval": 1},
        {"val_check_interval": 4, "check_val_every_n_epoch": 2},
        {"val_check_interval": 0.5, "check_val_every_n_epoch": 2},
        {"check_val_every_n_epoch": 2},
        {"check_val_every_n_epoch": 3},
        {"val_check_interval": timedelta(0)},
        {"val_check_interval": "00:00:00:00", "check_val_every_n_epoch": 2},
        {"val_check_interval": {"days": 1}},
        {"val_check_interval": timedelta(0), "check_val_every_n_epoch": None},
    ],
    ids=str,
)
def test_evaluations_are_at_lightnings_update_steps(tmp_path, keywords):
    """Fractions, numbers and times are counted as by Lightning's own loop, which runs beside it."""
    trainer = trainer_of_12(tmp_path, keywords)
    trainer.eval_dataset = ListDataset(vector_rows(2))
    train_alike(trainer)
    seen = []
    module = Plain(PlainModel())
    module.validation_step = lambda batch, *_: None
    module.on_validation_epoch_end = lambda: seen.append(module.trainer.global_step)
    loader = DataLoader(ListDataset(vector_rows(12)), batch_size=2, collate_fn=trainer.data_collator)
    minimal_trainer(**keywords).fit(module, loader, DataLoader([0]))
    assert evaluated_at(trainer) == seen


def test_fractions_are_of_update_steps(tmp_path):
    """Of 6 batches in windows of 2, an epoch has 3 update steps: a third is one; ``eval_delay`` holds."""
    trainer = trainer_of_12(tmp_path, {"val_check_interval": 0.34, "accumulate_grad_batches": 2}, eval_delay=3)
    train_alike(trainer)
    assert evaluated_at(trainer) == [3, 4, 5, 6]
    trainer = trainer_of_12(tmp_path, {"check_val_every_n_epoch": 2}, num_train_epochs=4, eval_delay=3)
    train_alike(trainer)
    assert evaluated_at(trainer) == [24]


def test_evaluations_of_fractions_go_on_in_a_resumed_run(tmp_path):
    """A run that is resumed within an epoch evaluates where one that was never interrupted does."""
    keywords, saving = {"val_check_interval": 0.5}, {"save_strategy": "steps", "save_steps": 1}
    whole, resumed = (trainer_of_12(tmp_path, keywords, **saving) for _ in range(2))
    train_alike(whole)
    train_alike(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert evaluated_at(resumed) == evaluated_at(whole) == [3, 6, 9, 12]
    assert losses(resumed) == losses(whole)


def test_the_best_of_fractions_is_saved(tmp_path):
    """``save_strategy="best"`` saves at these evaluations, also where the best is to be loaded at the end."""
    best = {"save_strategy": "best", "metric_for_best_model": "loss", "load_best_model_at_end": True}
    train_alike(trainer_of_12(tmp_path, {"val_check_interval": 0.5}, learning_rate=1e-4, **best))
    saved = {int(path.name.partition("-")[2]) for path in tmp_path.glob("checkpoint-*")}
    assert {3} <= saved <= {3, 6, 9, 12}


@pytest.mark.parametrize(
    ("keywords", "settings", "message"),
    [
        ({"val_check_interval": 7}, {}, "'val_check_interval': 7.*6 update steps"),
        ({"val_check_interval": 0.5}, {"train": Stream(vector_rows(12)), "max_steps": 4}, "'val_check_interval': 0.5"),
    ],
)
def test_times_that_no_epoch_has_are_errors(tmp_path, keywords, settings, message):
    """More update steps than an epoch has, or a fraction of an unknown number, are told."""
    with pytest.raises(DataError, match=message):
        trainer_of_12(tmp_path, keywords, **settings).train()


# The sanity check


def test_a_sanity_check_changes_nothing(tmp_path):
    """It runs so many batches with Lightning's hooks; no callback, log, number or random state knows of it."""
    spy, counted = Spy(), Batches()
    keywords = {"num_sanity_val_steps": 2}
    settings, model = {"eval_strategy": "epoch"}, Forwards()
    stopping = EarlyStopping("eval_loss", patience=0, mode="max")
    checked = trainer_of_12(
        tmp_path, keywords, model=copy.deepcopy(model), callbacks=[spy, counted, stopping], **settings
    )
    plain_stopping, plain_counted = EarlyStopping("eval_loss", patience=0, mode="max"), Batches()
    plain = trainer_of_12(tmp_path, model=model, callbacks=[plain_counted, plain_stopping], **settings)
    train_alike(checked)
    after = torch.get_rng_state()
    train_alike(plain)
    assert spy.seen[:4] == ["start", "checked", "checked", "end"]
    assert set(spy.seen[4:]) == {"validated"}
    assert checked.model.seen[:3] == ["no_grad", "no_grad", "train"]
    assert counted.predicted == plain_counted.predicted
    assert (losses(checked), evaluated_at(checked)) == (losses(plain), evaluated_at(plain))
    assert_same_weights(weights(checked.model), weights(plain.model))
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize(
    ("keywords", "batches"),
    [
        ({"num_sanity_val_steps": -1}, 5),
        ({"num_sanity_val_steps": 9}, 5),
        ({"num_sanity_val_steps": 4, "limit_val_batches": 3}, 3),
        ({"num_sanity_val_steps": 0}, 0),
        ({"num_sanity_val_steps": None}, 0),
    ],
)
def test_batches_of_a_sanity_check(tmp_path, keywords, batches):
    """-1 is all; a limit of evaluations holds for it too."""
    spy = Spy()
    train_alike(trainer_of_12(tmp_path, keywords, callbacks=[spy], max_steps=1))
    assert spy.seen.count("checked") == batches
    assert "validated" not in spy.seen


def test_a_sanity_check_finds_what_would_fail_later(tmp_path):
    """An error of ``compute_metrics`` comes before the first update step; of several datasets each is checked."""
    trainer = trainer_of_12(tmp_path, {"num_sanity_val_steps": 1})
    trainer.compute_metrics = lambda prediction: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert trainer.state.global_step == 0
    spy = Spy()
    trainer = trainer_of_12(tmp_path, {"num_sanity_val_steps": 1}, callbacks=[spy], max_steps=1)
    trainer.eval_dataset = {"first": trainer.eval_dataset, "second": trainer.eval_dataset}
    train_alike(trainer)
    assert spy.seen.count("checked") == 2


def test_a_resumed_run_has_no_sanity_check(tmp_path):
    """As in Lightning."""
    spy = Spy()
    trainer_of_12(tmp_path, save_strategy="steps", save_steps=3, max_steps=3).train()
    trainer = trainer_of_12(tmp_path, {"num_sanity_val_steps": 2}, callbacks=[spy], max_steps=4)
    train_alike(trainer, resume_from_checkpoint=True)
    assert (trainer.state.global_step, spy.seen) == (4, [])


# The end


@pytest.mark.parametrize(
    ("keywords", "event", "steps"),
    [
        ({"min_steps": 1}, "on_step_end", 3),
        ({"min_steps": 4}, "on_step_end", 4),
        ({"min_steps": 4}, "on_step_begin", 4),
        ({"min_steps": 4}, "on_substep_end", 4),
        ({"min_epochs": 2}, "on_step_end", 6),
        ({"min_epochs": 1, "min_steps": 4}, "on_step_end", 4),
        ({"min_epochs": 0}, "on_step_end", 2),
        ({}, "on_step_end", 2),
    ],
)
def test_a_run_has_its_minimum(tmp_path, keywords, event, steps):
    """A stop that a callback asks for at update step 2 waits for the minimum, of 3 update steps an epoch.

    As in Lightning, ``min_steps`` alone asks for an epoch too.
    """
    keywords = keywords | {"accumulate_grad_batches": 2}
    trainer = trainer_of_12(tmp_path, keywords, callbacks=[Stops(event, 2)], num_train_epochs=3)
    train_alike(trainer)
    assert trainer.state.global_step == steps
    assert len(losses(trainer)) == steps


def test_early_stopping_waits_for_the_minimum(tmp_path):
    """That of Lightning and that of transformers would end these runs after the second evaluation."""
    ours = EarlyStoppingCallback(early_stopping_patience=1)
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "greater_is_better": True}
    for callback in (EarlyStopping("eval_loss", patience=1, mode="max"), ours):
        trainer = trainer_of_12(tmp_path, {"min_steps": 7}, callbacks=[callback], **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train_alike(trainer)
        assert trainer.state.global_step == 7


def test_a_stream_that_is_empty_ends_before_the_minimum(tmp_path):
    """A run without a batch ends, whatever its minimum."""
    trainer = trainer_of_12(tmp_path, {"min_steps": 3}, train=Stream([]), max_steps=5)
    trainer.train()
    assert trainer.state.global_step == 0


# Runs of another kind


def test_a_development_run(tmp_path):
    """A few update steps and batches, one evaluation; no logger, checkpoint or early stop, whatever else is set."""
    counted, logger = Batches(), CSVLogger(tmp_path / "csv")
    callbacks = [counted, ModelCheckpoint(tmp_path / "lightning"), LearningRateMonitor(), EarlyStopping("eval_loss")]
    trainer = trainer_of_12(
        tmp_path / "run",
        {"fast_dev_run": 2, "logger": logger, "max_epochs": 7, "val_check_interval": 0.5},
        callbacks=callbacks,
        max_steps=50,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        load_best_model_at_end=True,
        report_to="tensorboard",
    )
    given = trainer.args
    train_alike(trainer)
    assert (trainer.state.global_step, evaluated_at(trainer), counted.predicted) == (2, [2], 2)
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 4
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
    assert trainer.lightning_trainer.fast_dev_run == 2
    assert (given.report_to, given.max_steps) == ([], 2)


def test_a_development_run_of_one_step(tmp_path):
    """True is one update step and batch; without evaluation data nothing is evaluated; False and 0 are no such run."""
    trainer = trainer_of_12(tmp_path, {"fast_dev_run": True}, eval_strategy="epoch")
    train_alike(trainer)
    assert (trainer.state.global_step, evaluated_at(trainer)) == (1, [1])
    without = Trainer(PlainModel(), trainer.args, train_dataset=trainer.train_dataset, lightning={"fast_dev_run": 1})
    without.train()
    assert without.state.global_step == 1
    for off in (False, 0):
        trainer = trainer_of_12(tmp_path, {"fast_dev_run": off})
        train_alike(trainer)
        assert trainer.state.global_step == 12


def test_a_bare_run(tmp_path):
    """Nothing is logged, shown or saved, and the weights are those of any run; evaluations remain."""
    bare = trainer_of_12(tmp_path, {"barebones": True}, save_strategy="steps", eval_strategy="epoch")
    plain = trainer_of_12(tmp_path, eval_strategy="epoch")
    train_alike(bare, plain)
    assert [sorted(set(entry) & {"loss", "eval_loss", "train_loss"}) for entry in bare.state.log_history] == [
        *(["eval_loss"], ["eval_loss"], ["train_loss"])
    ]
    assert list(tmp_path.glob("checkpoint-*")) == []
    assert bare.lightning_trainer.barebones
    assert bare.lightning_trainer.loggers == []
    assert bare.lightning_trainer.log_every_n_steps == 0
    assert_same_weights(weights(bare.model), weights(plain.model))


# Loaders


class Reloads(Trainer):
    """Notes at which update steps it is asked for a train loader, and may return another."""

    loaded_at = ()
    rows = None

    def get_train_dataloader(self):
        self.loaded_at = (*self.loaded_at, self.state.global_step)
        if self.rows and len(self.loaded_at) > 1:
            self.train_dataset = ListDataset(self.rows)
        return super().get_train_dataloader()


def reloading(folder, keywords, rows=None, **fields):
    trainer = trainer_of_12(folder, keywords, num_train_epochs=5, **fields)
    trainer.__class__ = Reloads
    trainer.rows = rows
    return trainer


@pytest.mark.parametrize(("every", "at"), [(0, (0,)), (1, (0, 6, 12, 18, 24)), (2, (0, 12, 24))])
def test_loaders_are_reloaded(tmp_path, every, at):
    """After so many epochs, the train loader is asked for again; of the same data the run is the same."""
    trainer, plain = reloading(tmp_path, {"reload_dataloaders_every_n_epochs": every}), reloading(tmp_path, None)
    train_alike(trainer, plain)
    assert trainer.loaded_at == at
    assert losses(trainer) == losses(plain)


def test_a_reloaded_loader_is_read(tmp_path):
    """New data is trained on from that epoch on; a resumed run reloads too."""
    rows, saving = vector_rows(12, seed=5), {"save_strategy": "epoch"}
    trainer = reloading(tmp_path, {"reload_dataloaders_every_n_epochs": 1}, rows, **saving)
    plain = reloading(tmp_path / "plain", None)
    train_alike(trainer, plain)
    assert losses(trainer)[:6] == losses(plain)[:6]
    assert losses(trainer)[6:12] != losses(plain)[6:12]
    resumed = reloading(tmp_path, {"reload_dataloaders_every_n_epochs": 1}, rows, **saving)
    resumed.train_dataset = ListDataset(rows)
    train_alike(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert resumed.loaded_at == (0, 18, 24)
    assert losses(resumed) == losses(trainer)


def test_a_reloaded_loader_has_the_same_length(tmp_path):
    """The schedule is planned with the first loader's; another is told."""
    trainer = reloading(tmp_path, {"reload_dataloaders_every_n_epochs": 2}, vector_rows(8))
    with pytest.raises(DataError, match="the new train loader has 4 batches, the first had 6"):
        trainer.train()


def test_on_one_process_there_is_nothing_to_share(tmp_path):
    """``use_distributed_sampler=False`` changes nothing there."""
    own, plain = trainer_of_12(tmp_path, {"use_distributed_sampler": False}), trainer_of_12(tmp_path)
    train_alike(own, plain)
    assert losses(own) == losses(plain)


# Loggers


def test_lightnings_default_logger(tmp_path):
    """``logger=True`` writes the Trainer's logs to TensorBoard, below the output folder, as Lightning's default."""
    trainer = trainer_of_12(tmp_path, {"logger": True}, max_steps=1)
    train_alike(trainer)
    (logger,) = trainer.lightning_trainer.loggers
    assert isinstance(logger, TensorBoardLogger)
    assert list((tmp_path / "lightning_logs" / "version_0").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("logger", [None, False, []])
def test_no_logger(tmp_path, logger):
    """None is as if it was not given; False is none."""
    trainer = trainer_of_12(tmp_path, {"logger": logger}, max_steps=1)
    train_alike(trainer)
    assert trainer.lightning_trainer.loggers == []


def test_no_progress_bar(tmp_path):
    """``enable_progress_bar=False`` is ``disable_tqdm=True``: transformers' bar is a progress bar as well."""
    trainer = trainer_of_12(tmp_path, {"enable_progress_bar": False}, max_steps=1)
    assert trainer.args.disable_tqdm
    assert trainer.lightning_trainer is None
    train_alike(trainer)
    assert trainer.lightning_trainer.progress_bar_callback is None


# Together with what the Trainer does by itself


def test_tokens_of_limited_epochs(tmp_path):
    """The tokens that are counted ahead, as before 5.x, are those of the batches that are read."""
    counts = []
    for keywords, rows in (({"limit_train_batches": 2}, 12), (None, 4)):
        trainer = trainer_of_12(
            tmp_path,
            keywords,
            train=ListDataset([{**row, "input_ids": [1, 2, 3]} for row in vector_rows(rows)]),
            semantics="4.57",
            include_tokens_per_second=True,
            remove_unused_columns=False,
        )
        trainer.model.forward = lambda input_ids, forward=trainer.model.forward, **inputs: forward(**inputs)
        train_alike(trainer)
        counts.append(trainer.training_run.counters.train_tokens)
    assert counts == [24, 24]


def test_smaller_batches_have_longer_epochs(tmp_path):
    """``auto_find_batch_size`` begins again with all keywords: half of an epoch is then more update steps.

    The run has its minimum: with ``min_steps`` at least one epoch, as in Lightning.
    """

    class Full(PlainModel):
        def forward(self, features, labels):
            if self.training and len(features) > 2:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(features, labels)

    spy = Spy()
    seen = spy.seen  # which is not the callback's alone, so that the second fit does not begin it anew
    keywords = {"limit_train_batches": 0.5, "num_sanity_val_steps": 1, "val_check_interval": 0.34, "min_steps": 2}
    trainer = trainer_of_12(
        tmp_path,
        keywords,
        model=Full(),
        callbacks=[spy, Stops("on_step_end", 1)],
        per_device_train_batch_size=3,
        auto_find_batch_size=True,
    )
    train_alike(trainer)
    assert seen.count("checked") == 2
    assert trainer.run_plan.update_steps_per_epoch == 3
    assert (trainer.state.global_step, evaluated_at(trainer)) == (3, [1, 2, 3])


# What is refused


@pytest.mark.parametrize(
    ("keywords", "settings", "message"),
    [
        ({"gradient_clip_algorithm": "value"}, {}, "'gradient_clip_algorithm': 'value'.*set `gradient_clip_val`"),
        (
            {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
            {"max_grad_norm": 0.5},
            r"'gradient_clip_algorithm': 'value'.*`max_grad_norm=0.5`",
        ),
        ({"gradient_clip_algorithm": "max"}, {}, "pass 'norm' or 'value'"),
        ({"gradient_clip_val": -1}, {}, "'gradient_clip_val': -1.*pass a number"),
        ({"inference_mode": None}, {}, "'inference_mode': None"),
        ({"num_sanity_val_steps": -2}, {}, "'num_sanity_val_steps': -2"),
        ({"min_steps": 5}, {"max_steps": 4}, "'min_steps': 5.*`max_steps=4`"),
        ({"min_epochs": 3}, {}, "'min_epochs': 3.*`num_train_epochs=2`"),
        ({"min_steps": -1}, {}, "'min_steps': -1"),
        ({"fast_dev_run": -1}, {}, "'fast_dev_run': -1"),
        ({"barebones": True}, {"save_strategy": "epoch"}, "'barebones': True.*`save_strategy='epoch'`"),
        ({"barebones": True}, {"logging_strategy": "epoch"}, "'barebones': True.*`logging_strategy='epoch'`"),
        ({"barebones": True}, TENSORBOARD, "'barebones': True.*`report_to="),
        ({"barebones": True, "profiler": "simple"}, {}, "'barebones': True, 'profiler': 'simple'"),
        ({"barebones": True, "fast_dev_run": True}, {}, "'barebones': True, 'fast_dev_run': True"),
        ({"barebones": True}, {"callbacks": [ModelCheckpoint()]}, "ModelCheckpoint.*'barebones': True"),
        ({"enable_progress_bar": False}, {"callbacks": [TQDMProgressBar()]}, "TQDMProgressBar.*'enable_progress_bar'"),
        ({"reload_dataloaders_every_n_epochs": -1}, {}, "'reload_dataloaders_every_n_epochs': -1"),
        (
            {"use_distributed_sampler": False},
            {"accelerator_config": {"split_batches": True}},
            "'use_distributed_sampler': False.*`accelerator_config=.*split_batches",
        ),
        ({"logger": False}, TENSORBOARD, "'logger': False.*`report_to="),
        ({"val_check_interval": 0.5}, {"eval_strategy": "epoch"}, "'val_check_interval': 0.5.*`eval_strategy='epoch'`"),
        ({"val_check_interval": 0.5, "check_val_every_n_epoch": None}, {}, "takes no fraction"),
        ({"val_check_interval": 0}, {}, "'val_check_interval': 0"),
        ({"val_check_interval": "90"}, {}, "'val_check_interval': '90'.*00:01:30:00"),
        ({"check_val_every_n_epoch": 0}, {}, "'check_val_every_n_epoch': 0"),
        (
            {"val_check_interval": 0.5},
            {
                **{"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2},
                **{"eval_strategy": "steps", "eval_steps": 1},
            },
            "`load_best_model_at_end=True`.*`save_strategy='best'`",
        ),
        ({"callbacks": []}, {}, r"use Trainer\(callbacks=\[...\]\)"),
    ],
)
def test_what_contradicts_is_refused(tmp_path, keywords, settings, message):
    """Both sides are named, and what to do, before anything runs."""
    with pytest.raises(TrainerSetupError, match=message):
        trainer_of_12(tmp_path, keywords, **settings)


def test_a_sanity_check_needs_data(tmp_path):
    """Without an ``eval_dataset`` there is nothing to check."""
    args = trainer_of_12(tmp_path).args
    with pytest.raises(TrainerSetupError, match=r"'num_sanity_val_steps': 2.*`eval_dataset=None`"):
        Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), lightning={"num_sanity_val_steps": 2})


# All of them


PASSED_ON = {
    "benchmark": (True, lambda trainer: torch.backends.cudnn.benchmark),
    "default_root_dir": ("elsewhere", lambda trainer: trainer.default_root_dir == "elsewhere"),
    "detect_anomaly": (True, lambda trainer: trainer._detect_anomaly),
    "deterministic": ("warn", lambda trainer: torch.is_deterministic_algorithms_warn_only_enabled()),
    "enable_autolog_hparams": (False, lambda trainer: not trainer.enable_autolog_hparams),
    "enable_model_summary": (True, lambda trainer: any(isinstance(one, ModelSummary) for one in trainer.callbacks)),
    "log_every_n_steps": (3, lambda trainer: trainer.log_every_n_steps == 3),
    "max_time": ({"days": 1}, lambda trainer: any(isinstance(one, Timer) for one in trainer.callbacks)),
    "model_registry": ("place", lambda trainer: trainer._model_registry == "place"),
    "profiler": ("simple", lambda trainer: len(trainer.profiler.recorded_durations["run_training_batch"]) == 2),
}
"""Keywords that Lightning carries out by itself → a value, and whether a run of two update steps had it."""
SHOWN_ELSEWHERE = {
    **dict.fromkeys(("accelerator", "devices", "num_nodes", "strategy", "sync_batchnorm"), "tests/distributed"),
    **dict.fromkeys(("limit_predict_batches", "limit_test_batches", "limit_train_batches"), "test_keywords"),
    **dict.fromkeys(("limit_val_batches", "max_epochs", "max_steps", "overfit_batches"), "test_keywords"),
    **dict.fromkeys(("accumulate_grad_batches", "enable_checkpointing", "precision"), "test_keywords"),
    "plugins": "test_precision",
}
"""Keywords of which another file of tests shows the effect."""


@pytest.mark.filterwarnings("ignore:.*anomaly", "ignore:.*deterministic")
@pytest.mark.parametrize("keyword", PASSED_ON)
def test_lightning_carries_out_the_others(tmp_path, monkeypatch, keyword):
    """What hf_compat does not carry out itself, the run's ``lightning.Trainer`` does."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # set by `deterministic`
    value, was_carried_out = PASSED_ON[keyword]
    trainer = trainer_of_12(tmp_path, {keyword: value}, max_steps=2)
    try:
        train_alike(trainer)
        assert was_carried_out(trainer.lightning_trainer)
    finally:
        torch.use_deterministic_algorithms(False)


def test_every_keyword_has_a_row_and_a_test():
    """A new keyword of Lightning is noticed here; each is tested here, or where it says."""
    known = set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}
    assert set(KEYWORDS) == known
    assert list(KEYWORDS) == sorted(KEYWORDS)
    assert all(one.note for one in KEYWORDS.values())
    here = Path(__file__).read_text()
    tested = {name for name in known if f'"{name}": ' in here.partition("# All of them")[0]}
    assert tested | set(PASSED_ON) | set(SHOWN_ELSEWHERE) == known


def test_the_page_is_the_table():
    """The page of the documentation is up to date."""
    assert PAGE.read_text() == page(), "run: python -m tests.support.lightning_keywords_page"
