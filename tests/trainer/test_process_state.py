"""What a process shares is after a call as it was before, and during a call as in transformers."""

import logging
import signal
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial

import lightning.pytorch  # its import, and that of the run, is not to count
import pytest
import torch

import hf_compat.trainer.pieces
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.support import trainers
from tests.support.helpers import ListDataset, PlainModel, vector_rows

trainer_of = partial(trainers.new_trainer, max_steps=2, save_steps=1, eval_strategy="steps", eval_steps=1)


def modes():
    """Return the modes of torch that a script may have set."""
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision": torch.get_float32_matmul_precision(),
    }


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
        "modes of torch": modes(),
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


@contextmanager
def set_to(put, get, value):
    """Context of a mode that is set for the whole process."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": partial(set_to, torch.set_grad_enabled, torch.is_grad_enabled, False),
    "enable_grad": torch.enable_grad,
    "anomalies": partial(torch.autograd.set_detect_anomaly, True),
    "anomalies but no NaN": partial(torch.autograd.set_detect_anomaly, True, check_nan=False),
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "float64": partial(set_to, torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "deterministic": partial(
        set_to, torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
}
QUICK = {("no_grad", "train"), ("no_grad", "evaluate"), ("anomalies but no NaN", "train")}


def under(mode, call, library, folder):
    """Return what ``call`` does under a mode: its result or error, the modes inside it and after it."""
    seen = []

    class Sees(library.Trainer):
        def compute_loss(self, *args, **kwargs):
            seen.append(modes())
            return super().compute_loss(*args, **kwargs)

    def metrics(prediction):
        seen.append(modes())
        return {}

    torch.manual_seed(0)
    trainer = trainer_of(folder, Sees, library=library, rows=4, given={"compute_metrics": metrics})
    rows = trainer.eval_dataset
    calls = {"train": trainer.train, "evaluate": trainer.evaluate, "predict": lambda: trainer.predict(rows)}
    try:
        with MODES[mode]():
            try:
                calls[call]()
            finally:
                seen.append(modes())
    except Exception as error:
        return error, seen
    return [log.get("loss", log.get("eval_loss")) for log in trainer.state.log_history], seen


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        pytest.param(mode, call, marks=() if (mode, call) in QUICK else pytest.mark.slow)
        for mode in MODES
        for call in ("train", "evaluate", "predict")
    ],
)
def test_modes_of_torch_are_those_of_the_caller(mode, call, tmp_path):
    """In a loss, in ``compute_metrics`` and afterwards they are what they are in transformers; errors are of its class.

    Lightning enables gradients in a fit, disables them around an evaluation, and detects anomalies only if it is told.
    """
    transformers = pytest.importorskip("transformers")
    theirs, there = under(mode, call, transformers, tmp_path / "theirs")
    ours, here = under(mode, call, hf_compat, tmp_path / "ours")
    assert here == there
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs))
        assert str(theirs) in str(ours)
        assert str(ours) == str(theirs) or "outside of" in str(ours)
    else:
        assert ours == theirs


def test_metrics_may_be_trained(tmp_path):
    """``compute_metrics`` may compute gradients, such as those of a probe, in training and alone, nested too."""

    def probe(prediction):
        weight = torch.ones(prediction.predictions.shape[1], requires_grad=True)
        (torch.tensor(prediction.predictions) @ weight).sum().backward()
        return {"probe": weight.grad.sum().item()}

    def evaluate_again(prediction):
        trainer.compute_metrics = probe
        try:
            return {"probe": trainer.evaluate()["eval_probe"]}
        finally:
            trainer.compute_metrics = evaluate_again

    trainer = trainer_of(tmp_path, given={"compute_metrics": evaluate_again})
    first = trainer.evaluate()["eval_probe"]
    trainer.train()
    assert first != 0
    assert all(log["eval_probe"] != 0 for log in trainer.state.log_history if "eval_loss" in log)


@pytest.mark.parametrize(
    "where",
    [
        "loss",
        *(
            pytest.param(where, marks=pytest.mark.slow)
            for where in ("metrics", "on_train_begin", "on_epoch_end", "on_train_end", "interrupt")
        ),
    ],
)
def test_what_a_trainer_is_after_an_error(where, tmp_path):
    """Its state, control and flags are those of transformers, and so is a second run."""
    transformers = pytest.importorskip("transformers")

    def run(library):
        raised = KeyboardInterrupt if where == "interrupt" else LookupError

        class Fails(library.Trainer):
            def compute_loss(self, *args, **kwargs):
                if where in ("loss", "interrupt") and self.state.global_step == 1 and self.model.training and fails:
                    raise raised
                return super().compute_loss(*args, **kwargs)

        class Callback(library.TrainerCallback):
            def on_event(self, args, state, control, **kwargs):
                control.should_log = True
                if fails:
                    raise raised

        if where.startswith("on_"):
            setattr(Callback, where, Callback.on_event)

        def metrics(prediction):
            if where == "metrics" and fails:
                raise raised
            return {}

        torch.manual_seed(0)
        fails, found = True, []
        given = {"compute_metrics": metrics}
        trainer = trainer_of(tmp_path, Fails, library=library, callbacks=[Callback()], given=given, save_strategy="no")
        for fails in (True, False):
            with pytest.raises(raised) if fails else nullcontext():
                trainer.train()
            history = [
                {key: log[key] for key in log.keys() & {"loss", "epoch", "step"}} for log in trainer.state.log_history
            ]
            found.append((trainer.is_in_train, vars(trainer.control), trainer.state.global_step, history))
            found.append((trainer._train_batch_size, trainer.model.training, trainer.model_wrapped is trainer.model))
        return found

    ours, theirs = run(hf_compat), run(transformers)
    assert ours == theirs
