"""What each callback of Lightning does in a run of ours, and which are refused before it."""

import csv
import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import lightning.pytorch.callbacks as exported
import pytest
import torch
from lightning.fabric.utilities.spike import TrainingSpikeException
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    BasePredictionWriter,
    BatchSizeFinder,
    Callback,
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    OnExceptionCheckpoint,
    ProgressBar,
    RichModelSummary,
    RichProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from safetensors.torch import load_file
from torch import nn

from hf_compat import Trainer, TrainerCallback
from hf_compat.engine.lightning_callbacks import NEVER_CALLED, OF_SANITY_CHECK, REFUSED_CALLBACKS
from hf_compat.engine.module import HFModule
from hf_compat.errors import HFCompatWarning, TrainerSetupError
from tests.support.helpers import CLASSES, WIDTH, ListDataset, vector_rows
from tests.support.lightning_callbacks_page import PAGE, SUPPORT, page
from tests.support.trainers import new_trainer


class TwoParts(nn.Module):
    """A classifier with a backbone and a head."""

    flops_per_batch = 1000

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh())
        self.head = nn.Linear(4, CLASSES)

    def forward(self, features, labels=None):
        logits = self.head(self.backbone(features))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer_with(tmp_path, *callbacks, **fields):
    """Return a Trainer for 4 epochs of 3 update steps, with an evaluation every 2 and a checkpoint every 3 steps."""
    given = {
        "eval_dataset": ListDataset(vector_rows(6, seed=1)),
        "lightning": {"logger": CSVLogger(tmp_path / "csv"), "log_every_n_steps": 1},
    }
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 3, "logging_steps": 1}
    settings = {"num_train_epochs": 4, "learning_rate": 0.05, "per_device_train_batch_size": 4, **steps, **fields}
    return new_trainer(tmp_path, model=TwoParts(), rows=12, callbacks=callbacks, given=given, **settings)


def trained_with(tmp_path, *callbacks, **settings):
    """Return such a Trainer after its run."""
    trainer = trainer_with(tmp_path, *callbacks, **settings)
    trainer.train()
    return trainer


def logged(tmp_path, name):
    """Return what was logged as ``name``, by update step."""
    rows = csv.DictReader((tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines())
    return {int(row["step"]): float(row[name]) for row in rows if row.get(name)}


def names_of(folder):
    """Return the names of the files in ``folder``."""
    return sorted(path.name for path in folder.iterdir())


def assert_resumes(tmp_path, make: Callable[[], Callback], whole: Trainer, **settings):
    """Assert that a run resumed from the 6th of 12 update steps ends with the weights of the ``whole`` run."""
    resumed = trainer_with(tmp_path, make(), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    ends = resumed.model.state_dict()
    assert all(torch.equal(value, ends[name]) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_an_added_backbone_has_the_weight_decay_of_the_run(decay, optim, tmp_path):
    """As the parameters of an optimizer in plain Lightning have its own; it is not torch's default for the class."""
    callback = BackboneFinetuning(1, lambda epoch: 1.0, should_align=False)
    trainer = trainer_with(tmp_path, callback, weight_decay=decay, optim=optim)
    trainer.train()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [decay, 0.0, decay]


def backbone_finetuning(tmp_path):
    """The backbone keeps its weights for an epoch, is trained then at its own rate, and the run can be resumed."""
    seen = []

    class Rates(TrainerCallback):
        def on_step_end(self, args, state, control, model, optimizer, **kwargs):
            backbone = [group["lr"] for group in optimizer.param_groups[2:]]
            seen.append((model.backbone[0].weight.detach().clone(), backbone))

    trainer = trainer_with(tmp_path, BackboneFinetuning(1, lambda epoch: 1.0, should_align=False), Rates())
    before = trainer.model.backbone[0].weight.detach().clone()
    trainer.train()
    weights = [weight for weight, _ in seen]
    assert all(torch.equal(weight, before) for weight in weights[:3])
    assert not any(torch.equal(weight, before) for weight in weights[3:])
    assert seen[2][1] == []
    assert seen[3][1] == seen[5][1] != []
    assert_resumes(tmp_path, lambda: BackboneFinetuning(1, lambda epoch: 1.0, should_align=False), trainer)


def test_a_resumed_run_has_the_patience_that_it_was_given(tmp_path):
    """A run that stopped after one evaluation without an improvement is resumed with more patience, to its end."""
    stopped = trained_with(tmp_path, EarlyStopping("eval_loss", patience=1, min_delta=9.0), eval_steps=3)
    assert stopped.state.global_step == 6
    stopping = EarlyStopping("eval_loss", patience=9, min_delta=9.0)
    resumed = trainer_with(tmp_path, stopping, eval_steps=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert resumed.state.global_step == 12
    assert (stopping.patience, stopping.wait_count) == (9, 3)


def test_a_run_resumes_in_the_epoch_that_adds_the_backbone(tmp_path):
    """It is added once: the weights are those of the unbroken run."""

    def make():
        return BackboneFinetuning(1, lambda epoch: 1.0, should_align=False)

    whole = trained_with(tmp_path, make(), save_steps=5)
    resumed = trainer_with(tmp_path, make(), save_steps=5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    ends = resumed.model.state_dict()
    assert all(torch.equal(value, ends[name]) for name, value in whole.model.state_dict().items())


class HeadFirst(BaseFinetuning):
    """Trains the backbone from the second epoch on."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)


def base_finetuning(tmp_path):
    """What a subclass adds to the optimizer is trained, in a resumed run too."""
    trainer = trained_with(tmp_path, HeadFirst())
    assert not torch.equal(trainer.model.backbone[0].weight, TwoParts().backbone[0].weight)
    assert len(trainer.optimizer.param_groups) == 3
    assert_resumes(tmp_path, HeadFirst, trainer)


def callback(tmp_path):
    """Every hook is called but those that the table names; the batch of a training hook has the Trainer's batches."""
    seen, windows = set(), []

    def spying(hook):
        def spy(self, trainer, pl_module, *given, **named):
            seen.add(hook)
            windows.extend(given[1].batches if hook == "on_train_batch_end" else ())

        return spy

    hooks = [name for name in dir(Callback) if name.startswith("on_") or name in ("setup", "teardown")]
    spy = type("Spy", (Callback,), {hook: spying(hook) for hook in hooks})
    trainer = trained_with(tmp_path, spy(), gradient_accumulation_steps=3)
    trainer.predict(trainer.eval_dataset)
    with pytest.raises(ZeroDivisionError):
        trained_with(tmp_path, spy(), LambdaCallback(on_train_batch_end=lambda *_: 1 / 0))
    trainer_with(tmp_path, spy(), gradient_accumulation_steps=3).train(resume_from_checkpoint=True)
    assert set(hooks) - seen == {*NEVER_CALLED, *OF_SANITY_CHECK}
    assert set(windows[0]) == {"features", "labels"}


def checkpoint(tmp_path):
    """A subclass is called after other callbacks, and before the run saves."""
    order = []

    class Late(Checkpoint):
        def on_train_batch_end(self, trainer, *_):
            order.append(("late", (tmp_path / f"checkpoint-{trainer.global_step}").exists()))

    trained_with(tmp_path, Late(), LambdaCallback(on_train_batch_end=lambda *_: order.append("early")), max_steps=3)
    assert order == ["early", ("late", False)] * 3


def device_stats_monitor(tmp_path):
    """The load of the CPU is logged at each update step."""
    trained_with(tmp_path, DeviceStatsMonitor(), max_steps=3)
    stats = logged(tmp_path, "DeviceStatsMonitor.on_train_batch_end/cpu_vm_percent")
    assert sorted(stats) == [1, 2, 3]
    assert all(0 < value < 100 for value in stats.values())


def early_stopping(tmp_path):
    """Metrics of evaluations and logged ones are monitored, after evaluations or, without them, after epochs."""
    never = {"patience": 1, "min_delta": 1e9}
    assert trained_with(tmp_path / "1", EarlyStopping("eval_loss", **never)).state.global_step == 4
    assert trained_with(tmp_path / "2", EarlyStopping("loss", **never)).state.global_step == 4
    assert trained_with(tmp_path / "3", EarlyStopping("loss", **never), eval_strategy="no").state.global_step == 6
    thresholds = EarlyStopping("learning_rate", stopping_threshold=0.045)
    assert trained_with(tmp_path / "4", thresholds, eval_strategy="no").state.global_step == 3


def ema_weight_averaging(tmp_path):
    """As the next, with an exponential average."""
    _average(tmp_path, lambda: EMAWeightAveraging(decay=0.5), lambda average, new, count: (average + new) / 2)


def weight_averaging(tmp_path):
    """Model, evaluations and checkpoints have the average of the weights of all update steps; a run can be resumed."""
    _average(tmp_path, WeightAveraging, lambda average, new, count: average + (new - average) / (count + 1))


def _average(tmp_path, make, update):
    after = []

    class Weights(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            after.append(model.head.weight.detach().clone())

    trainer = trained_with(tmp_path, make(), Weights())
    average, saved = after[0], {}
    for count, new in enumerate(after[1:], start=1):
        average = update(average, new, count)
        saved[count + 1] = average
    assert torch.allclose(trainer.model.head.weight, average)
    plain = Trainer(TwoParts(), trainer.args, eval_dataset=trainer.eval_dataset)
    plain._load_from_checkpoint(str(tmp_path / "checkpoint-6"))
    assert torch.allclose(plain.model.head.weight, saved[6])
    (told,) = (entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry and entry["step"] == 6)
    assert plain.evaluate()["eval_loss"] == pytest.approx(told)
    assert_resumes(tmp_path, make, trainer)


def lambda_callback(tmp_path):
    """Its functions are called."""
    steps = []
    trained_with(tmp_path, LambdaCallback(on_train_batch_end=lambda trainer, *_: steps.append(trainer.global_step)))
    assert steps == list(range(1, 13))


def learning_rate_monitor(tmp_path):
    """The rate of each update step is logged; it is the one in the history."""
    trainer = trained_with(tmp_path, LearningRateMonitor(logging_interval="step"))
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert list(logged(tmp_path, "lr-AdamW/pg1").values()) == pytest.approx(rates)


def model_checkpoint(tmp_path):
    """Lightning checkpoints are saved when it says so, beside the run's own."""
    folder = tmp_path / "lightning"
    trained_with(tmp_path / "1", ModelCheckpoint(folder / "steps", "{step}", every_n_train_steps=5, save_top_k=-1))
    assert names_of(folder / "steps") == ["step=10.ckpt", "step=5.ckpt"]
    trained_with(tmp_path / "2", ModelCheckpoint(folder / "epochs", "{step}", every_n_epochs=2, save_top_k=-1))
    assert names_of(folder / "epochs") == ["step=10.ckpt", "step=12.ckpt", "step=4.ckpt", "step=6.ckpt"]
    last = ModelCheckpoint(folder / "last", "{step}", save_last=True)
    trainer = trained_with(tmp_path / "3", last, eval_strategy="no")
    assert names_of(folder / "last") == ["last.ckpt", "step=12.ckpt"]
    content = torch.load(folder / "last" / "last.ckpt", weights_only=True)
    assert content["global_step"] == 12
    assert torch.equal(content["state_dict"]["model.head.weight"], trainer.model.head.weight)
    best = ModelCheckpoint(folder / "best", "{step}-{eval_loss:.6f}", monitor="eval_loss")
    trainer = trained_with(tmp_path / "4", best)
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    step = min(losses, key=losses.get)
    assert names_of(folder / "best") == [f"step={step}-eval_loss={losses[step]:.6f}.ckpt"]
    assert {"checkpoint-3", "checkpoint-12"} <= set(names_of(tmp_path / "4"))
    with pytest.raises(ZeroDivisionError):
        trained_with(
            tmp_path / "5",
            ModelCheckpoint(folder / "error", "{step}", save_top_k=0, save_on_exception=True),
            LambdaCallback(on_validation_start=lambda *_: 1 / 0),
        )
    assert names_of(folder / "error") == ["step=2.ckpt"]


def model_pruning(tmp_path):
    """Half of the weights are 0 after the run and in checkpoints, which have no masks; a run can be resumed."""

    def make():
        return ModelPruning("l1_unstructured", amount=0.5, parameter_names=["weight"], parameters_to_prune=())

    def zeros(model):
        return sum(int((layer.weight == 0).sum()) for layer in (model.backbone[0], model.head))

    trainer = trained_with(tmp_path, make(), max_steps=6)
    assert zeros(trainer.model) >= 38
    loaded = TwoParts()
    saved = trainer_with(tmp_path)
    saved.model = saved.model_wrapped = loaded
    saved._load_from_checkpoint(str(tmp_path / "checkpoint-6"))
    assert zeros(loaded) >= 38
    resumed = trainer_with(tmp_path, make(), max_steps=9)
    with pytest.warns(HFCompatWarning, match="keeps its masks in no checkpoint"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert zeros(resumed.model) >= 38


def model_summary(tmp_path, capsys, caplog):
    """A table of the model's layers is printed."""
    with caplog.at_level("INFO"):
        trained_with(tmp_path, ModelSummary(max_depth=2), max_steps=1)
    assert "model.backbone" in caplog.text + capsys.readouterr().out


def on_exception_checkpoint(tmp_path):
    """A Lightning checkpoint is saved when the run ends with an error; the next run does not begin there."""
    failing = LambdaCallback(on_validation_start=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained_with(tmp_path, OnExceptionCheckpoint(tmp_path / "error"), failing)
    assert torch.load(tmp_path / "error" / "on_exception.ckpt", weights_only=True)["global_step"] == 2
    assert trained_with(tmp_path, OnExceptionCheckpoint(tmp_path / "error")).lightning_trainer.global_step == 12


def progress_bar(tmp_path):
    """A subclass is Lightning's bar, and knows the number of update steps."""
    seen = []

    class Bar(ProgressBar):
        def on_train_batch_end(self, *given):
            seen.append(self.total_train_batches)

    trainer = trained_with(tmp_path, Bar(), gradient_accumulation_steps=3)
    assert isinstance(trainer.lightning_trainer.progress_bar_callback, Bar)
    assert seen == [1] * 4


def rich_model_summary(tmp_path, capsys):
    """A table of the model's layers is printed."""
    trained_with(tmp_path, RichModelSummary(max_depth=2), max_steps=1)
    assert "model.backbone" in capsys.readouterr().out


def rich_progress_bar(tmp_path, capsys):
    """The bar counts update steps."""
    bar = RichProgressBar()
    _trainer = trained_with(
        tmp_path, bar, gradient_accumulation_steps=3
    )  # without which the bar has no trainer to read
    assert bar.total_train_batches == 1
    assert "Epoch 3/3" in capsys.readouterr().out


def spike_detection(tmp_path):
    """A spike of the loss ends the run with Lightning's error and names the batches; the state can be resumed."""
    trainer = trained_with(tmp_path, SpikeDetection(rtol=1e9))
    assert_resumes(tmp_path, lambda: SpikeDetection(rtol=1e9), trainer)
    spiked = trainer_with(
        tmp_path / "2", SpikeDetection(rtol=0.0, atol=0.0, exclude_batches_path=tmp_path / "bad.json")
    )
    with pytest.raises(TrainingSpikeException):
        spiked.train()
    assert json.loads((tmp_path / "bad.json").read_text())[0] >= 0


def throughput_monitor(tmp_path):
    """Samples of update steps and of evaluations are counted, with the model's FLOPs."""
    monitor = ThroughputMonitor(lambda batch: len(batch["labels"]), lambda batch: batch["features"].shape[1])
    trained_with(tmp_path, monitor, per_device_eval_batch_size=2, gradient_accumulation_steps=3, save_strategy="no")
    assert logged(tmp_path, "train/samples") == {1: 12, 2: 24, 3: 36, 4: 48}
    assert max(logged(tmp_path, "validate/samples").values()) == 6


def timer(tmp_path):
    """The time of the run is measured, also over a resume, and the run ends after the duration."""
    whole = Timer()
    trained_with(tmp_path, whole)
    assert whole.time_elapsed("train") > whole.time_elapsed("validate") > 0
    resumed = Timer()
    trainer_with(tmp_path, resumed).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert resumed.time_elapsed("train") > resumed.end_time("train") - resumed.start_time("train")
    short = Timer(timedelta(microseconds=1))
    assert trained_with(tmp_path / "2", short).state.global_step <= 1


def tqdm_progress_bar(tmp_path, capsys):
    """The bar counts update steps."""
    trained_with(tmp_path, TQDMProgressBar(), gradient_accumulation_steps=3)
    output = capsys.readouterr()
    assert "Epoch 3: 100%" in output.out + output.err


EFFECTS = {
    "BackboneFinetuning": backbone_finetuning,
    "BaseFinetuning": base_finetuning,
    "Callback": callback,
    "Checkpoint": checkpoint,
    "DeviceStatsMonitor": device_stats_monitor,
    "EarlyStopping": early_stopping,
    "EMAWeightAveraging": ema_weight_averaging,
    "LambdaCallback": lambda_callback,
    "LearningRateMonitor": learning_rate_monitor,
    "ModelCheckpoint": model_checkpoint,
    "ModelPruning": model_pruning,
    "ModelSummary": model_summary,
    "OnExceptionCheckpoint": on_exception_checkpoint,
    "ProgressBar": progress_bar,
    "RichModelSummary": rich_model_summary,
    "RichProgressBar": rich_progress_bar,
    "SpikeDetection": spike_detection,
    "ThroughputMonitor": throughput_monitor,
    "Timer": timer,
    "TQDMProgressBar": tqdm_progress_bar,
    "WeightAveraging": weight_averaging,
}
"""Callback → the test of what it does."""


class Writer(BasePredictionWriter):
    """Writes nothing."""


REFUSED = {
    "BasePredictionWriter": Writer,
    "BatchSizeFinder": BatchSizeFinder,
    "GradientAccumulationScheduler": lambda: GradientAccumulationScheduler({1: 2}),
    "LearningRateFinder": LearningRateFinder,
    "StochasticWeightAveraging": lambda: StochasticWeightAveraging(0.01),
}
"""Callback → an instance of it, or of a subclass."""


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_a_callback_works(name, tmp_path, request):
    """A callback that the table lists as working does its work in a run with evaluations and checkpoints."""
    effect = EFFECTS[name]
    fixtures = [one for one in effect.__code__.co_varnames[: effect.__code__.co_argcount] if one != "tmp_path"]
    effect(tmp_path, *map(request.getfixturevalue, fixtures))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_callback_is_refused(name, tmp_path):
    """One that cannot do its work is refused with the Trainer, and by ``add_callback``, naming what to use instead."""
    with pytest.raises(TrainerSetupError) as caught:
        trainer_with(tmp_path, REFUSED[name]())
    assert REFUSED_CALLBACKS[name].reason in str(caught.value)
    assert REFUSED_CALLBACKS[name].instead in str(caught.value)
    with pytest.raises(TrainerSetupError, match="is not supported"):
        trainer_with(tmp_path).add_callback(REFUSED[name]())


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda: ModelCheckpoint(train_time_interval=timedelta(1)), {}, "`train_time_interval`.*every_n_train_steps"),
        (lambda: EarlyStopping("eval_loss"), {"eval_strategy": "no"}, "no evaluation computes it: set `eval_strategy`"),
        (lambda: ModelCheckpoint(monitor="eval_loss"), {"eval_strategy": "no"}, "no evaluation computes it"),
        (
            lambda: ModelPruning("l1_unstructured", amount=0.5, make_pruning_permanent=False),
            {},
            "`make_pruning_permanent=False`.*`save_strategy='no'`",
        ),
        (lambda: LambdaCallback(on_predict_start=print), {}, "has no effect.*on_predict_start.*on_test_"),
    ],
)
def test_a_setting_is_refused(make, settings, message, tmp_path):
    """A setting with which a callback would fail or do nothing is refused before training."""
    with pytest.raises(TrainerSetupError, match=message):
        trainer_with(tmp_path, make(), **settings)


@pytest.mark.parametrize("kind", [DeviceStatsMonitor, LearningRateMonitor])
def test_a_callback_that_logs_needs_a_logger(kind, tmp_path):
    """Without a logger the run is refused before its first step."""
    trainer = trainer_with(tmp_path, kind())
    trainer.lightning_backend.user_loggers.clear()
    with pytest.raises(TrainerSetupError, match=f"{kind.__name__} needs a Lightning logger.*`report_to`"):
        trainer.train()


def test_the_table_has_every_callback_and_the_tests_have_too():
    """Nothing that Lightning exports is missing: a new callback is noticed here."""
    assert {*SUPPORT, *REFUSED_CALLBACKS} == set(exported.__all__)
    assert SUPPORT.keys() == EFFECTS.keys()
    assert REFUSED_CALLBACKS.keys() == REFUSED.keys()


def test_the_page_is_the_table():
    """The page of the documentation is up to date."""
    assert PAGE.read_text() == page(), "run: python -m tests.support.lightning_callbacks_page"


def test_callbacks_may_be_added_and_removed(tmp_path):
    """``add_callback`` and its like take Lightning's callbacks, classes too; they take part from the next run on."""
    trainer, timer = trainer_with(tmp_path, LambdaCallback, max_steps=1), Timer()
    trainer.add_callback(timer)
    trainer.train()
    assert timer.time_elapsed("train") > 0
    assert isinstance(trainer.pop_callback(LambdaCallback), LambdaCallback)
    assert trainer.pop_callback(timer) is timer
    assert trainer.pop_callback(timer) is None
    trainer.add_callback(SpikeDetection)
    trainer.remove_callback(SpikeDetection)
    assert trainer.pop_callback(SpikeDetection) is None


def test_the_module_has_the_models_attributes(tmp_path):
    """Callbacks may ask the module for parts of the model; what Lightning itself looks for is never the model's."""
    trainer = trainer_with(tmp_path, max_steps=1)
    trainer.model.train_dataloader = trainer.model.on_epoch = trainer.model.batch_size = 1
    trainer.train()
    module = trainer.lightning_module
    assert module.backbone is trainer.model.backbone
    assert module.flops_per_batch == 1000
    assert not hasattr(module, "on_epoch")
    assert not hasattr(module, "batch_size")
    assert callable(module.train_dataloader)
    assert not hasattr(module, "no_such_name")


def test_what_a_callback_adds_to_a_checkpoint_comes_back(tmp_path):
    """``on_save_checkpoint`` and ``on_load_checkpoint`` are called with a checkpoint that keeps what is added."""

    class Keeper(Callback):
        loaded, saves = None, 0

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            self.saves += 1
            checkpoint["kept"] = {"step": trainer.global_step, "weights": len(checkpoint["state_dict"])}

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            self.loaded = checkpoint["kept"]

    saver, keeper = Keeper(), Keeper()
    trained_with(tmp_path, saver)
    assert saver.saves == len(list(tmp_path.glob("checkpoint-*"))) > 0
    trainer_with(tmp_path, keeper).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert keeper.loaded == {"step": 6, "weights": 4}


def test_a_state_dict_is_made_for_those_who_read_it(tmp_path, monkeypatch):
    """A resumed run builds the module's state dict only for a callback with ``on_load_checkpoint``."""

    class Reader(Callback):
        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            assert len(checkpoint["state_dict"]) == 4

    made, whole = [], HFModule.state_dict
    trained_with(tmp_path)
    monkeypatch.setattr(HFModule, "state_dict", lambda self: made.append(self) or whole(self))
    for callbacks, expected in (((Timer(),), 0), ((Reader(),), 1)):
        made.clear()
        trainer_with(tmp_path, *callbacks).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        assert len(made) == expected


@pytest.mark.parametrize(
    ("callback", "setting", "instead"),
    [
        (partial(EarlyStopping, "val_loss"), "monitor='val_loss'", "eval_loss"),
        (partial(EarlyStopping, "val/accuracy"), "monitor='val/accuracy'", "eval_accuracy"),
        (partial(EarlyStopping, "eval/loss"), "monitor='eval/loss'", "eval_loss"),
        (partial(ModelCheckpoint, monitor="train_loss_epoch"), "monitor='train_loss_epoch'", "loss"),
        (partial(ModelCheckpoint, monitor="loss_step"), "monitor='loss_step'", "loss"),
        (partial(ModelCheckpoint, filename="{step}-{valid_f1:.2f}"), "filename='{step}-{valid_f1:.2f}'", "eval_f1"),
    ],
)
def test_a_monitor_that_a_trainer_does_not_log(callback, setting, instead, tmp_path):
    """The constructor and ``add_callback`` warn, with the name that is logged."""
    said = re.escape(f"has `{setting}`, but a Trainer logs no") + f".* Use '{instead}', unless"
    with pytest.warns(HFCompatWarning, match=said):
        trainer_with(tmp_path, callback())
    with pytest.warns(HFCompatWarning, match=said):
        trainer_with(tmp_path).add_callback(callback())


def test_files_that_are_judged_by_an_older_evaluation(tmp_path):
    """With `every_n_train_steps` a file has the value of the evaluation before; the constructor warns of it."""
    best = partial(ModelCheckpoint, tmp_path / "best", "{step}-{eval_loss:.6f}", monitor="eval_loss", save_top_k=-1)
    with pytest.warns(HFCompatWarning, match="Leave `every_n_train_steps` out"):
        trainer = trainer_with(tmp_path, best(every_n_train_steps=4), eval_strategy="steps", eval_steps=2, max_steps=4)
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert losses[2] != losses[4]
    assert names_of(tmp_path / "best") == [f"step=4-eval_loss={losses[2]:.6f}.ckpt"]
    trainer_with(tmp_path, best())  # nothing is said of it
    trainer_with(tmp_path, ModelCheckpoint(monitor="loss", every_n_train_steps=4))


def test_files_of_weights_alone_beside_an_average(tmp_path):
    """They have the weights of the last update step, as Lightning's; checkpoints have the average. It warns once."""
    files = partial(ModelCheckpoint, monitor="eval_loss", save_weights_only=True)
    settings = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4, "max_steps": 4}
    with pytest.warns(HFCompatWarning, match="and not the average of EMAWeightAveraging, which is evaluated"):
        trainer = trainer_with(tmp_path, EMAWeightAveraging(decay=0.5), files(tmp_path / "best"), **settings)
    trained = []
    trainer.add_callback(LambdaCallback(on_train_batch_end=lambda _, module, *rest: trained.append(copies(module))))
    trainer.train()
    (name,) = names_of(tmp_path / "best")
    weights = torch.load(tmp_path / "best" / name, weights_only=True)["state_dict"]
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(value, trained[-1][key]) for key, value in weights.items())
    assert not all(torch.equal(value, weights[f"model.{key}"]) for key, value in saved.items())
    with pytest.warns(HFCompatWarning, match="and not the average"):
        trainer_with(tmp_path, EMAWeightAveraging(decay=0.5)).add_callback(files())
    trainer_with(tmp_path, files())  # nothing is said of it


@pytest.mark.parametrize(
    ("begins", "said", "first"),
    [
        ({"update_starting_at_step": 7}, "until then evaluations and checkpoints have the weights", "untrained"),
        ({"update_starting_at_epoch": 2}, "which delays nothing, as in Lightning", "averaged"),
    ],
    ids=["step", "epoch"],
)
def test_an_average_that_begins_late(begins, said, first, tmp_path):
    """The first checkpoint has what the first evaluation is of, the weights of the beginning or an average of all."""
    with pytest.warns(HFCompatWarning, match=said):
        trainer = trainer_with(tmp_path, EMAWeightAveraging(decay=0.5, **begins), max_steps=3)
    weights = copies(trainer.model)
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    is_untrained = all(torch.equal(value, weights[name]) for name, value in saved.items())
    assert is_untrained == (first == "untrained")


def test_an_average_that_begins_where_it_is_to(tmp_path):
    """Nothing is said of one at the ends of epochs, or of a callback that decides by itself."""

    class Own(EMAWeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return False

    trainer_with(tmp_path, EMAWeightAveraging(update_starting_at_epoch=2, update_every_n_steps=0))
    trainer_with(tmp_path, Own(update_starting_at_step=7))


def copies(module):
    """Return copies of the weights of ``module``."""
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("monitor", ["eval_loss", "eval_f1", "loss", "grad_norm", "learning_rate", "my_score", "value"])
def test_a_monitor_that_may_be_logged(monitor, tmp_path):
    """Nothing is said of it."""
    trainer_with(tmp_path, EarlyStopping(monitor), ModelCheckpoint(filename=f"{{epoch}}-{{{monitor}}}"))


def test_a_monitor_that_the_script_logs(tmp_path):
    """Such a run is not ended: the callback finds what a callback of the script has logged."""

    class Logs(Callback):
        def on_validation_end(self, pl_trainer, pl_module):
            pl_trainer.callback_metrics["val_loss"] = pl_trainer.callback_metrics["eval_loss"]

    with pytest.warns(HFCompatWarning, match="unless your code logs the other"):
        trainer = trainer_with(tmp_path, Logs(), EarlyStopping("val_loss"))
    trainer.train()


def test_a_missing_monitor_ends_the_run(tmp_path):
    """Lightning's errors say which names there are."""
    for callback in (EarlyStopping("val_loss"), ModelCheckpoint(str(tmp_path), monitor="val_loss")):
        with pytest.warns(HFCompatWarning, match="val_loss"):
            trainer = trainer_with(tmp_path, callback)
        with pytest.raises((RuntimeError, MisconfigurationException), match=r"val_loss.*eval_loss"):
            trainer.train()
