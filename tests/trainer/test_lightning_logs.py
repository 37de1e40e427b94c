"""When and where in a logger's file Lightning callbacks log in a run of ours."""

import csv
import logging

import pytest
from lightning.pytorch.callbacks import Callback, DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR

from hf_compat import Trainer, TrainerCallback
from tests.engine.test_lightning_callbacks import TwoParts
from tests.support.helpers import ListDataset, vector_rows
from tests.support.trainers import new_trainer


def logged_run(tmp_path, *callbacks, lightning=None, resume=None, trainer_class=Trainer, **fields):
    """Return the Trainer after two epochs of 4 update steps, with a file ``metrics.csv``."""
    folder = tmp_path / ("log" if resume is None else "resumed")
    given = {
        "eval_dataset": ListDataset(vector_rows(4, seed=1)),
        "lightning": {"logger": CSVLogger(folder, name="", version=""), **(lightning or {})},
    }
    fields = {"num_train_epochs": 2, "save_strategy": "no", "per_device_train_batch_size": 2, "optim": "sgd", **fields}
    trainer = new_trainer(tmp_path, trainer_class, model=TwoParts(), callbacks=callbacks, given=given, **fields)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(tmp_path, name, run="log"):
    """Return what was logged as ``name``, by update step."""
    rows = csv.DictReader((tmp_path / run / "metrics.csv").read_text().splitlines())
    return {int(row["step"]): float(row[name]) for row in rows if row.get(name)}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"logging_steps": 1}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"logging_steps": 3}, [3, 6]),
        ({"logging_steps": 0.25}, [2, 4, 6, 8]),
        ({"logging_strategy": "epoch"}, [4, 8]),
        ({"logging_strategy": "no"}, []),
        ({"logging_steps": 1, "lightning": {"log_every_n_steps": 4}}, [4, 8]),
        ({"logging_strategy": "no", "lightning": {"log_every_n_steps": 4}}, [4, 8]),
    ],
    ids=str,
)
def test_callbacks_log_where_the_trainer_does(settings, steps, tmp_path):
    """Beside the loss of the same update steps, as ``log_every_n_steps`` is that of the Trainer's logs unless set."""
    trainer = logged_run(tmp_path, LearningRateMonitor(), DeviceStatsMonitor(), **settings)
    if "lightning" not in settings and steps:
        assert list(logged(tmp_path, "train/loss")) == steps
    if steps:
        rates = logged(tmp_path, "lr-SGD/pg1")
        assert list(rates) == steps
        assert list(rates.values()) == pytest.approx([5e-5 * (9 - step) / 8 for step in steps])
        assert list(logged(tmp_path, "DeviceStatsMonitor.on_train_batch_end/cpu_vm_percent")) == steps
    else:
        assert trainer.lightning_trainer.log_every_n_steps == 50


def test_a_default_of_the_trainer_is_no_interval(tmp_path, caplog):
    """Lightning's 50 then stays, which is more often; a run that is shorter says that nothing will be logged."""
    throughput = ThroughputMonitor(lambda batch: len(batch["labels"]))
    with caplog.at_level(logging.WARNING):
        trainer = logged_run(tmp_path, LearningRateMonitor(), LearningRateMonitor("epoch"), throughput)
    assert trainer.lightning_trainer.log_every_n_steps == 50
    assert caplog.messages == [
        "LearningRateMonitor, ThroughputMonitor: Lightning callbacks log every 50 update steps, and this run ends "
        "after 8, so nothing will be logged. Set `logging_steps`, or `lightning={'log_every_n_steps': ...}`."
    ]
    assert list(logged(tmp_path, "lr-SGD/pg1")) == [1, 5]


class Logs(Callback):
    """Logs from each kind of hook."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.log("of_step", float(trainer.global_step))

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("of_epoch", float(trainer.global_step))

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("of_evaluation", float(trainer.global_step))


@pytest.mark.parametrize("resume", [None, 3, 4])
def test_what_callbacks_log_is_at_its_update_step(resume, tmp_path):
    """That of ``global_step`` after it, as with the Trainer's logs: of steps, epochs, evaluations; resumed or not."""
    settings, folder, run = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}, None, "log"
    if resume is not None:
        logged_run(tmp_path, Logs(), max_steps=resume, save_strategy="steps", save_steps=resume, **settings)
        folder, run = str(tmp_path / f"checkpoint-{resume}"), "resumed"
    trainer = logged_run(tmp_path, Logs(), resume=folder, **settings)
    rest = range((resume or 0) + 1, 9)
    assert logged(tmp_path, "of_step", run) == {step: step for step in rest}
    assert logged(tmp_path, "of_epoch", run) == {step: step for step in (4, 8) if step in rest}
    assert logged(tmp_path, "of_evaluation", run) == {step: step for step in (2, 4, 6, 8) if step in rest}
    assert list(logged(tmp_path, "train/loss", run)) == list(rest)
    trainer.evaluate()
    assert logged(tmp_path, "of_evaluation", run)[8] == 8


class Halving(Trainer):
    """Has a schedule of its own."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = LambdaLR(self.optimizer, lambda step: 0.5**step)
        return self.lr_scheduler


class Plain:
    """A schedule that is none of torch's."""

    def __init__(self, optimizer):
        self.rate = optimizer.param_groups[0]["lr"]
        self.optimizer = optimizer

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Unknown(Trainer):
    """Has a schedule that Lightning does not know."""

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = Plain(self.optimizer)
        return self.lr_scheduler


@pytest.mark.parametrize("kind", [Halving, Unknown])
def test_the_rates_of_a_schedule_of_ones_own(kind, tmp_path):
    """Are logged at each update step, and it is stepped once in each."""
    logged_run(tmp_path, LearningRateMonitor(), trainer_class=kind, logging_steps=1, learning_rate=1.0)
    rates = logged(tmp_path, "lr-SGD/pg1")
    assert rates == {step: 0.5 ** (step - 1) for step in range(1, 9)}


def test_a_plateau_schedule_is_logged_by_step_too(tmp_path):
    """Its rate changes at evaluations, which may be within an epoch."""

    class Worse(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            assert metrics

    settings = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "greater_is_better": True}
    given = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    trainer = logged_run(
        tmp_path, LearningRateMonitor(), Worse(), logging_steps=1, learning_rate=0.5, **settings, **given
    )
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert list(logged(tmp_path, "lr-SGD/pg1").values()) == pytest.approx(rates)
    (config,) = trainer.lightning_trainer.lr_scheduler_configs
    assert (config.interval, config.frequency, config.name) == ("step", 1, None)
