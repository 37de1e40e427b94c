"""What a process shares is after a call as it was before: warning filters, log records, imports, signals, hooks."""

import logging
import signal
import sys
import threading
import warnings
from functools import partial

import lightning.pytorch  # its import, and that of the run, is not to count
import pytest

import hf_compat.trainer.pieces
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.support import trainers
from tests.support.helpers import ListDataset, PlainModel, vector_rows

trainer_of = partial(trainers.new_trainer, max_steps=2, save_steps=1, eval_strategy="steps", eval_steps=1)


def shared():
    """Return what the process shares, each with its name."""
    loggers = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "py.warnings")
    return {
        "warning filters": list(warnings.filters),
        "showing a warning": warnings.showwarning,
        "making a log record": logging.getLogRecordFactory(),
        "class of a logger": logging.getLoggerClass(),
        "loggers": [(logging.getLogger(name).level, *logging.getLogger(name).filters) for name in loggers],
        "finders": [*sys.meta_path, *sys.path_hooks],
        "path": list(sys.path),
        "signals": {signum: signal.getsignal(signum) for signum in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
    }


class Breaks(PlainModel):
    """Raises in its second forward pass."""

    calls = 0

    def forward(self, features, labels=None):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("broken")
        return super().forward(features, labels)


def trains(tmp_path):
    trainer_of(tmp_path).train()


def saves_in_the_background(tmp_path):
    trainer_of(tmp_path, save_async=True).train()


def resumes(tmp_path):
    trainer_of(tmp_path, max_steps=1).train()
    trainer_of(tmp_path).train(resume_from_checkpoint=True)


def fails(tmp_path):
    with pytest.raises(ValueError, match="broken"):
        trainer_of(tmp_path, model=Breaks(), eval_strategy="no").train()


def evaluates_and_predicts(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)


def fits_pieces(tmp_path):
    lightning_trainer, module, data = hf_compat.trainer.pieces.to_lightning(trainer_of(tmp_path))
    lightning_trainer.fit(module, datamodule=data)


def fits_ones_own_pieces(tmp_path):
    args = trainer_of(tmp_path).args
    settings = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    settings |= {"max_epochs": -1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on the user's own trainer
        own = lightning.pytorch.Trainer(**settings, callbacks=callbacks(args))
    rows = ListDataset(vector_rows(8))
    own.fit(HFModule(PlainModel()), datamodule=HFDataModule(train_dataset=rows, eval_dataset=rows))


def fails_in_pieces(tmp_path):
    lightning_trainer, module, data = hf_compat.trainer.pieces.to_lightning(
        trainer_of(tmp_path, model=Breaks(), eval_strategy="no")
    )
    with pytest.raises(ValueError, match="broken"):
        lightning_trainer.fit(module, datamodule=data)


@pytest.mark.parametrize(
    "call",
    [
        trains,
        saves_in_the_background,
        resumes,
        fails,
        evaluates_and_predicts,
        fits_pieces,
        fits_ones_own_pieces,
        fails_in_pieces,
    ],
)
def test_a_call_leaves_the_process_as_it_was(call, tmp_path):
    """Nothing that the process shares is changed by a call, whether it ends or fails."""
    trainer_of(tmp_path / "first", max_steps=0)  # imports what a Trainer needs
    before = shared()
    call(tmp_path / "run")
    after = shared()
    assert {name: value for name, value in after.items() if value != before[name]} == {}


def test_filters_set_by_others_stay(tmp_path):
    """What a callback or a metric does to Python's filters in a run is there after it, and nothing of ours."""
    trainer, before = trainer_of(tmp_path), list(warnings.filters)
    trainer.compute_metrics = lambda _: warnings.filterwarnings("ignore", message="of a library") or {}
    trainer.train()
    added = [each for each in warnings.filters if each not in before]
    assert [each[1].pattern for each in added] == ["of a library"]
