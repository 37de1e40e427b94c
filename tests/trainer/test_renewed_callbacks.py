"""Each run of a Trainer begins with its Lightning callbacks as they were given."""

import threading
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    OnExceptionCheckpoint,
    RichProgressBar,
    SpikeDetection,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from transformers import default_data_collator

from hf_compat import HFCompatWarning, Trainer
from tests.engine.test_lightning_callbacks import TwoParts
from tests.support.helpers import ListDataset, vector_rows
from tests.support.lightning_callbacks_page import SUPPORT
from tests.support.trainers import new_trainer


def renewing_trainer(tmp_path, *callbacks, kind=Trainer, **fields):
    """Return a Trainer of 3 epochs of 2 update steps, each evaluated, that begins with the same model each time."""
    given = {
        "model_init": TwoParts,
        "eval_dataset": ListDataset(vector_rows(4, seed=1)),
        "lightning": {"logger": CSVLogger(tmp_path / "csv")},
    }
    cadence = {"eval_strategy": "epoch", "save_strategy": "no", "logging_steps": 1}
    fields = {"num_train_epochs": 3, "learning_rate": 0.05, "per_device_train_batch_size": 4, **cadence, **fields}
    return new_trainer(tmp_path / "out", kind, callbacks=callbacks, given=given, **fields)


def losses(trainer):
    """Train, and return the losses of the evaluations of this run."""
    trainer.train()
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def shown(value, depth=0):
    """Return what can be compared of an attribute."""
    if isinstance(value, dict):
        return {str(name): shown(one, depth) for name, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [shown(one, depth) for one in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if callable(value) or not hasattr(value, "__dict__") or depth == 3:
        return value if isinstance(value, int | float | str | None) else type(value).__name__
    return type(value).__name__, shown(vars(value), depth + 1)


def thawing(tmp_path):
    """A callback of finetuning-scheduler, and the one it needs."""
    package = pytest.importorskip("finetuning_scheduler")
    schedule = {
        0: {"params": ["model.head.*"], "max_transition_epoch": 1},
        1: {"params": ["model.backbone.*"], "max_transition_epoch": 4, "lr": 5e-3},
    }
    given = {"restore_best": False, "epoch_transitions_only": True, "ft_schedule": schedule}
    yield package.FinetuningScheduler(log_dir=str(tmp_path), **given)
    yield package.FTSCheckpoint(tmp_path / "files", monitor="eval_loss")


MADE = {
    "BackboneFinetuning": lambda tmp_path: BackboneFinetuning(1, lambda epoch: 1.0, should_align=False),
    "DeviceStatsMonitor": lambda tmp_path: DeviceStatsMonitor(),
    "EMAWeightAveraging": lambda tmp_path: EMAWeightAveraging(decay=0.5),
    "EarlyStopping": lambda tmp_path: EarlyStopping("eval_loss", patience=1, min_delta=9.0),
    "LambdaCallback": lambda tmp_path: LambdaCallback(on_train_start=lambda *_: None),
    "LearningRateMonitor": lambda tmp_path: LearningRateMonitor(log_momentum=True),
    "ModelCheckpoint": lambda tmp_path: ModelCheckpoint(monitor="eval_loss", save_top_k=2, save_last=True),
    "ModelPruning": lambda tmp_path: ModelPruning("l1_unstructured", amount=0.5),
    "ModelSummary": lambda tmp_path: ModelSummary(),
    "OnExceptionCheckpoint": lambda tmp_path: OnExceptionCheckpoint(tmp_path),
    "RichProgressBar": lambda tmp_path: RichProgressBar(),
    "SpikeDetection": lambda tmp_path: SpikeDetection(warmup=1, atol=99.0),
    "TQDMProgressBar": lambda tmp_path: TQDMProgressBar(),
    "ThroughputMonitor": lambda tmp_path: ThroughputMonitor(lambda batch: len(batch["labels"]), window_size=3),
    "Timer": lambda tmp_path: Timer({"hours": 1}),
    "WeightAveraging": lambda tmp_path: WeightAveraging(),
}


def test_every_callback_is_made_here():
    """Each that works and has a state, or may have one; the others are base classes, or another's twin."""
    without = {"BaseFinetuning", "Callback", "Checkpoint", "ProgressBar", "RichModelSummary"}
    assert set(MADE) | without == SUPPORT.keys()


@pytest.mark.filterwarnings("ignore")  # of the callbacks
@pytest.mark.parametrize("name", [*sorted(MADE), "FinetuningScheduler"])
def test_a_second_run_is_as_the_first(name, tmp_path):
    """Every callback of Lightning has the same attributes as the runs begin, and their numbers are the same."""
    callbacks = list(thawing(tmp_path)) if name not in MADE else [MADE[name](tmp_path)]
    begins = []

    class Begins(Callback):
        def setup(self, trainer, pl_module, stage):
            if stage == "fit":
                begins.append([shown(vars(one)) for one in callbacks])

    trainer = renewing_trainer(tmp_path, Begins(), *callbacks)
    first = losses(trainer)
    assert losses(trainer) == first
    assert begins[0] == begins[1]
    trainer.evaluate()
    assert losses(trainer) == first
    assert begins[0] == begins[2]


def test_the_callback_that_the_user_has_takes_part(tmp_path):
    """What a run finds can be read of it afterwards; the files of an earlier one stay, and have other names."""
    saving = ModelCheckpoint(tmp_path / "files", monitor="eval_loss", filename="best")
    stopping = EarlyStopping("eval_loss", patience=1, min_delta=9.0)
    trainer = renewing_trainer(tmp_path, saving, stopping)
    trainer.train()
    first, score = saving.best_model_path, saving.best_model_score
    assert (first, stopping.stopped_epoch, stopping.wait_count) == (str(tmp_path / "files" / "best.ckpt"), 1, 1)
    trainer.train()
    assert (saving.best_model_path, saving.best_model_score) == (str(tmp_path / "files" / "best-v1.ckpt"), score)
    assert (stopping.stopped_epoch, stopping.wait_count) == (1, 1)
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"best.ckpt", "best-v1.ckpt"}


class Keeps(Callback):
    """A callback of a user: counts, lists, and things that others have too."""

    def __init__(self, into, model, patience=3):
        self.patience = patience
        self.count = 0
        self.total = torch.zeros(1)
        self.losses = []
        self.best = {"loss": None, "steps": []}
        self.into = into
        self.model = model
        self.lock = threading.Lock()

    def on_train_start(self, trainer, pl_module):
        self.started = (self.count, self.total.item(), len(self.losses), len(self.best["steps"]), self.patience)
        self.had_added = hasattr(self, "added")
        self.added = True

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.count += 1
        self.total += 1
        self.losses.append(outputs["loss"].item())
        self.best["steps"].append(trainer.global_step)
        self.into.append(trainer.global_step)


class Stateful(Keeps):
    """The same with a state in checkpoints."""

    def state_dict(self):
        return {"count": self.count, "losses": self.losses}

    def load_state_dict(self, state_dict):
        self.count, self.losses = state_dict["count"], list(state_dict["losses"])


@pytest.mark.parametrize("kind", [Keeps, Stateful])
def test_callbacks_of_a_user(kind, tmp_path):
    """Begin as given; what was read stays, what others have is left alone, what was assigned in between counts."""
    into, model = [], TwoParts()
    given = kind(into, model)
    lock = given.lock
    trainer = renewing_trainer(tmp_path, given, save_strategy="epoch")
    trainer.train()
    read = given.losses
    assert (len(read), given.count, given.total.item(), given.started) == (6, 6, 6.0, (0, 0.0, 0, 0, 3))
    given.patience = 5
    trainer.evaluate()
    trainer.train()
    assert given.started == (0, 0.0, 0, 0, 5)
    assert not given.had_added
    assert given.losses == read
    assert given.losses is not read
    assert (given.model, given.lock) == (model, lock)
    assert given.into is into
    assert into == [*range(1, 7)] * 2
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert given.started == ((4, 0.0, 4, 0, 5) if kind is Stateful else (0, 0.0, 0, 0, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_average_in_half_precision_is_warned_of(dtype, tmp_path):
    """A step of 0.001 towards weights in bfloat16 is rounded away: the model after the run is that of its beginning."""
    trainer = renewing_trainer(tmp_path, EMAWeightAveraging(decay=0.999, update_starting_at_step=0))
    trainer.model_init = lambda: TwoParts().to(dtype)
    trainer.data_collator = lambda rows: {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in default_data_collator(rows).items()
    }
    expected = pytest.warns(HFCompatWarning, match="^EMAWeightAveraging averages weights in bfloat16")
    with expected if dtype == torch.bfloat16 else nullcontext():
        trainer.train()


def test_trials_of_a_search(tmp_path):
    """Each trial begins with the callback as it was given; a model is averaged from its own weights."""
    pytest.importorskip("optuna")
    into = []
    given = Keeps(into, None)
    trainer = renewing_trainer(tmp_path, given, EMAWeightAveraging(decay=0.5), num_train_epochs=1)
    alone = losses(renewing_trainer(tmp_path, EMAWeightAveraging(decay=0.5), num_train_epochs=1))
    scores = []

    def score(metrics):
        scores.append(metrics["eval_loss"])
        return metrics["eval_loss"]

    def space(trial):
        return {"weight_decay": trial.suggest_categorical("weight_decay", [0.0])}

    trainer.hyperparameter_search(space, score, n_trials=3, direction="minimize", backend="optuna")
    assert scores == alone * 3
    assert given.started == (0, 0.0, 0, 0, 3)
    assert into == [1, 2] * 3


def test_a_restart_with_smaller_batches(tmp_path):
    """After running out of memory, which a callback has not seen end, it begins as given."""
    failed = []

    class Runs(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            if len(inputs["labels"]) == 4 and self.state.global_step == 1:
                failed.append(given.count)
                raise RuntimeError("CUDA out of memory.")
            return super().compute_loss(model, inputs, **kwargs)

    given = Keeps([], None)
    renewing_trainer(tmp_path, given, kind=Runs, auto_find_batch_size=True).train()
    assert failed == [1]
    assert given.started == (0, 0.0, 0, 0, 3)
    assert given.best["steps"] == [*range(1, 10)]
