"""What users of Lightning get: its callbacks, loggers and counters on our runs."""

import os
import signal
import sys

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, Timer, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy

import hf_compat
from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import new_trainer


class Recorder(Callback):
    """Keeps the order of Lightning's hooks and the update steps they saw."""

    def __init__(self):
        self.seen = []

    def on_train_start(self, trainer, pl_module):
        self.seen.append(("train_start", trainer.global_step))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(("batch_end", trainer.global_step))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append(("before_step", trainer.global_step))

    def on_validation_end(self, trainer, pl_module):
        self.seen.append(("validation_end", float(trainer.callback_metrics["eval_loss"])))

    def state_dict(self):
        return {"count": len(self.seen)}

    def load_state_dict(self, state_dict):
        self.restored = state_dict["count"]


def trainer_of_12(tmp_path, *, lightning=None, **fields):
    """Return a Trainer of a plain model on 12 samples, 3 batches an epoch."""
    given = {"eval_dataset": ListDataset(vector_rows(6, seed=1)), "lightning": lightning}
    fields = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "logging_steps": 1} | fields
    return new_trainer(tmp_path, rows=12, given=given, **{"save_strategy": "no"} | fields)


def test_runs_a_real_lightning_trainer(tmp_path):
    """After training, the Lightning trainer counts what the state counts: update steps and epochs."""
    trainer = trainer_of_12(tmp_path, gradient_accumulation_steps=2)
    trainer.train()
    assert isinstance(trainer.lightning_trainer, pl.Trainer)
    assert trainer.lightning_trainer.global_step == trainer.state.global_step == 4
    assert trainer.lightning_trainer.current_epoch == 2


def test_lightning_callbacks_count_update_steps(tmp_path):
    """Lightning's batch hooks fire once an update step, whatever the accumulation, and see metrics of evaluations."""
    recorder = Recorder()
    trainer = trainer_of_12(tmp_path, callbacks=[recorder], gradient_accumulation_steps=3, eval_strategy="epoch")
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [name for name, _ in recorder.seen] == ["train_start", *["before_step", "batch_end", "validation_end"] * 2]
    assert [value for name, value in recorder.seen if name == "validation_end"] == pytest.approx(losses)


def test_callbacks_may_write_to_the_loss_that_they_get(tmp_path):
    """A callback that adds up losses in the first one that it got does not change what is logged."""

    class Summing(Callback):
        summed = None

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if self.summed is None:
                self.summed = outputs["loss"]
            else:
                self.summed += outputs["loss"]

    def logged(folder, *callbacks):
        torch.manual_seed(0)
        trainer = trainer_of_12(folder, callbacks=callbacks, logging_steps=6)
        trainer.train()
        return trainer.state.log_history[0]["loss"]

    callback = Summing()
    assert logged(tmp_path / "with", callback) == logged(tmp_path / "without")
    assert callback.summed.item() / 6 == pytest.approx(logged(tmp_path / "again"), abs=1e-4)  # 4.57 rounds what it logs


def test_lightning_early_stopping_stops_the_run(tmp_path):
    """Lightning's EarlyStopping on ``eval_loss`` ends a run of ours as the control does."""
    stopper = EarlyStopping(monitor="eval_loss", mode="min", patience=1, min_delta=1e9)
    trainer = trainer_of_12(tmp_path, callbacks=[stopper], num_train_epochs=9, eval_strategy="epoch")
    trainer.train()
    assert trainer.state.epoch == 2.0


def test_timer_and_learning_rate_monitor(tmp_path):
    """Lightning's own Timer and LearningRateMonitor work; the latter writes to a Lightning logger."""
    logger = CSVLogger(tmp_path / "csv")
    timer = Timer()
    monitor = LearningRateMonitor(logging_interval="step")
    trainer = trainer_of_12(tmp_path, callbacks=[timer, monitor], lightning={"logger": logger, "log_every_n_steps": 1})
    trainer.train()
    assert timer.time_elapsed("train") > 0
    text = (tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    header = text.splitlines()[0].split(",")
    assert {"train/loss", "train/grad_norm", "lr-AdamW/pg1"} <= set(header)


def test_lightning_logger_gets_every_log_at_its_update_step(tmp_path):
    """A logger handed to Lightning holds the history's losses, each at its update step."""
    logger = CSVLogger(tmp_path / "csv")
    trainer = trainer_of_12(tmp_path, lightning={"logger": logger})
    trainer.train()
    rows = (tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    logged = {}
    for row in rows[1:]:
        values = dict(zip(names, row.split(","), strict=True))
        if values.get("train/loss"):
            logged[int(values["step"])] = float(values["train/loss"])
    assert logged == {e["step"]: pytest.approx(e["loss"]) for e in trainer.state.log_history if "loss" in e}


def test_tensorboard_through_lightning(tmp_path):
    """``report_to="tensorboard"`` writes upstream's scalars into a folder that TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        disable_tqdm=True,
        report_to="tensorboard",
        save_strategy="no",
        logging_steps=1,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=3,
    )
    trainer = Trainer(
        PlainModel(), args, train_dataset=ListDataset(vector_rows(8)), eval_dataset=ListDataset(vector_rows(4))
    )
    trainer.train()
    (event_file,) = tmp_path.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(event_file.parent))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == {e["step"]: pytest.approx(e["loss"]) for e in trainer.state.log_history if "loss" in e}
    assert [event.step for event in events.Scalars("eval/loss")] == [3]
    assert "args/text_summary" in events.Tags()["tensors"]


def test_lightning_callback_state_survives_a_resume(tmp_path):
    """A Lightning callback's state is kept in the checkpoint and given back on resume."""
    trainer_of_12(tmp_path, callbacks=[Recorder()], max_steps=2, save_strategy="steps", save_steps=2).train()
    resumed = Recorder()
    trainer = trainer_of_12(tmp_path, callbacks=[resumed], max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert resumed.restored == 1 + 2 * 2
    assert resumed.seen[0] == ("train_start", 2)


@pytest.mark.parametrize(
    ("keyword", "value", "advice"),
    [
        pytest.param("strategy", "dp", "'dp'.*not supported.*'ddp'", id="a strategy by name"),
        pytest.param("strategy", "fsdp", "`fsdp` shards.*world size is only 1", id="shards for one process"),
        pytest.param("strategy", "fsdp_cpu_offload", "CPU offloading needs a GPU", id="offloading on a CPU"),
        pytest.param("strategy", FSDPStrategy(timeout=None), "`timeout` is not supported", id="a timeout of its own"),
        pytest.param(
            "strategy", SingleDeviceStrategy("meta"), "SingleDeviceStrategy.*is for meta.*on cpu", id="a device"
        ),
        pytest.param("strategy", DDPStrategy(process_group_backend="gloo"), "ddp_backend", id="a backend of its own"),
        pytest.param("devices", [0, 1], "CUDA_VISIBLE_DEVICES", id="devices one by one"),
        pytest.param("devices", 0, "`lightning=.'devices': 0", id="no device"),
        pytest.param("accelerator", "gpu", r"the device of this run \(cpu.*use_cpu", id="another accelerator"),
    ],
)
def test_places_that_cannot_be(tmp_path, keyword, value, advice):
    """Strategies that are not carried out, and devices that the arguments exclude, are refused before anything runs."""
    with pytest.raises(TrainerSetupError, match=advice):
        trainer_of_12(tmp_path, lightning={keyword: value})


def test_one_device_may_be_named(tmp_path):
    """What Lightning would take for a run on one device is accepted for one."""
    named = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "ddp"}
    assert trainer_of_12(tmp_path, lightning=named, max_steps=1).train().global_step == 1


def test_unknown_keywords_are_refused(tmp_path):
    """A keyword that Lightning does not have is refused before anything runs, with the nearest name."""
    with pytest.raises(TrainerSetupError, match=r"`profilr`.*Did you mean `profiler`"):
        trainer_of_12(tmp_path, lightning={"profilr": "simple"})


def test_lightning_progress_bar(tmp_path):
    """A progress bar of Lightning's counts update steps, as any of its callbacks."""
    bar = TQDMProgressBar()
    trainer = trainer_of_12(tmp_path, callbacks=[bar], gradient_accumulation_steps=2)
    trainer.train()
    assert bar.total_train_batches == 2


def test_lightning_profiler(tmp_path):
    """A Lightning profiler handed in profiles the run."""
    trainer = trainer_of_12(tmp_path, lightning={"profiler": "simple"})
    trainer.train()
    assert trainer.lightning_trainer.profiler.recorded_durations["run_training_batch"]


def test_a_profiler_of_several_runs(tmp_path):
    """One that the user made goes on in a second run, whose module is another."""
    settings = {"num_train_epochs": 1, "per_device_train_batch_size": 2}
    trainer = trainer_of_12(tmp_path, lightning={"profiler": PyTorchProfiler(tmp_path, "profile")}, **settings)
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 6


def test_epoch_means_are_over_samples(tmp_path):
    """What a callback logs for the epoch is weighted by the samples of each update step."""

    class Logging(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            pl_module.log("index", float(batch_idx), on_step=False, on_epoch=True)

    settings = {"num_train_epochs": 1, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}
    trainer = trainer_of_12(tmp_path, callbacks=[Logging()], **settings)  # 12 samples: 5 and 5, then 2
    trainer.train()
    assert trainer.lightning_trainer.callback_metrics["index"].item() == pytest.approx(2 / 12)


def test_evaluation_inside_compute_metrics(tmp_path):
    """``compute_metrics`` may itself predict: the evaluation under way goes on undisturbed."""
    trainer = trainer_of_12(tmp_path)
    extra = ListDataset(vector_rows(3, seed=2))

    def compute_metrics(prediction):
        trainer.compute_metrics = None
        inner = trainer.predict(extra).predictions
        trainer.compute_metrics = compute_metrics
        return {"inner": float(len(inner)), "outer": float(len(prediction.predictions))}

    trainer.compute_metrics = compute_metrics
    metrics = trainer.evaluate()
    assert (metrics["eval_inner"], metrics["eval_outer"]) == (3.0, 6.0)


def test_an_error_in_a_callback_reaches_the_user(tmp_path):
    """An exception raised in a user's code leaves ``train`` as it is, and a new ``train`` works."""
    trainer = trainer_of_12(tmp_path)
    boom = torch.nn.Module.register_forward_hook(trainer.model, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    boom.remove()
    assert trainer.train().global_step == 6


class Keyboard:
    """Presses Ctrl-C in the forward pass of ``model`` while ``is_pressed``."""

    def __init__(self, model):
        self.is_pressed = False
        model.register_forward_pre_hook(self._press)

    def _press(self, *_):
        if self.is_pressed:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def heeding_ctrl_c():
    """Ctrl-C raises a KeyboardInterrupt, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("call", ["train", "evaluate", "predict", "evaluate in train", "evaluate after train"])
@pytest.mark.parametrize("library", [transformers, hf_compat], ids=["upstream", "ours"])
def test_interrupt_reaches_the_user(call, library, tmp_path):
    """Ctrl-C leaves every method as the KeyboardInterrupt that it is, with its traceback, and works the next time."""
    model, rows = PlainModel(), ListDataset(vector_rows(12))
    settings = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "max_steps": 2}
    strategy = "steps" if call == "evaluate in train" else "no"
    args = library.TrainingArguments(str(tmp_path), eval_strategy=strategy, eval_steps=1, **settings)
    keyboard = Keyboard(model)

    class PressesLater(library.TrainerCallback):
        def on_step_end(self, *_, **__):
            keyboard.is_pressed = call == "evaluate in train"

    trainer = library.Trainer(model, args, train_dataset=rows, eval_dataset=rows, callbacks=[PressesLater()])
    run = {"predict": lambda: trainer.predict(rows), "evaluate": trainer.evaluate}.get(call, trainer.train)
    if call == "evaluate after train":
        trainer.train()
        run = trainer.evaluate
    handler = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        keyboard.is_pressed = call != "evaluate in train"
        with pytest.raises(KeyboardInterrupt) as caught:
            run()
        assert caught.traceback[-1].name == "_press"
        assert signal.getsignal(signal.SIGINT) is handler
    keyboard.is_pressed = False
    assert "eval_loss" in trainer.evaluate()


def test_an_exit_in_a_callback_stays_an_exit(tmp_path):
    """A user's own ``sys.exit`` leaves ``train`` and ``evaluate`` with its status."""
    trainer = trainer_of_12(tmp_path)
    torch.nn.Module.register_forward_hook(trainer.model, lambda *_: sys.exit(7))
    for call in (trainer.train, trainer.evaluate):
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 7


def test_a_stop_of_a_lightning_callback_holds(tmp_path):
    """A callback of the Trainer that says at each event whether to stop takes back its own requests alone."""

    class Stopping(Callback):
        def on_train_batch_end(self, trainer, *given):
            trainer.should_stop = trainer.global_step == 2

    class Deciding(hf_compat.TrainerCallback):
        def on_step_end(self, args, state, control, **given):
            control.should_training_stop = False

        on_epoch_end = on_step_end

    trainer = trainer_of_12(tmp_path, callbacks=[Stopping(), Deciding()], num_train_epochs=2)
    trainer.train()
    assert (trainer.state.global_step, trainer.control.should_training_stop) == (2, True)
