"""The callbacks that a Trainer has by default: which, in which order, and changed beforehand."""

from __future__ import annotations

import logging

import pytest
import transformers
from transformers import integrations, trainer_callback as upstream

import hf_compat
import hf_compat.callbacks as ours
import hf_compat.trainer
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import CONTROL_FLAGS, ListDataset, PlainModel, callback_args, vector_rows

LIBRARIES = {"ours": hf_compat, "transformers": transformers}
MODULES = {"ours": hf_compat.trainer, "transformers": transformers.trainer}


def new_trainer(library, folder, callbacks=None, **fields):
    settings = {"max_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    args = library.TrainingArguments(str(folder), **settings | fields)
    return library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), callbacks=callbacks)


def names_of(trainer):
    return [type(callback).__name__ for callback in trainer.callback_handler.callbacks]


@pytest.mark.parametrize("report_to", ["none", "tensorboard"])
@pytest.mark.parametrize("disable_tqdm", [False, True])
@pytest.mark.parametrize("given", [None, ["EarlyStoppingCallback"]])
def test_the_callbacks_are_upstreams(report_to, disable_tqdm, given, tmp_path):
    """The same, in the same order: the flow, one for each reporter, the user's, and what shows progress."""
    names = []
    for library in LIBRARIES.values():
        own = None if given is None else [getattr(library, name) for name in given]
        trainer = new_trainer(library, tmp_path, own, report_to=report_to, disable_tqdm=disable_tqdm)
        names.append(names_of(trainer))
    assert names[0] == names[1]


def test_the_reporter_is_found_by_either_class(tmp_path):
    """A script that removes transformers' TensorBoardCallback takes ours out; it writes until then."""
    trainer = new_trainer(hf_compat, tmp_path, report_to="tensorboard", logging_steps=1)
    trainer.train()
    callback = trainer.pop_callback(integrations.TensorBoardCallback)
    assert type(callback).__name__ == "TensorBoardCallback"
    assert list((tmp_path / "runs").rglob("events.*"))
    assert callback.tb_writer is callback.logger.experiment
    assert "TensorBoardCallback" not in names_of(trainer)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_defaults_changed_before_a_trainer_is_made_are_used(kind, tmp_path, monkeypatch):
    """A class or an instance in either place, as in ``transformers.trainer``."""
    library, module = LIBRARIES[kind], MODULES[kind]
    first = type("First", (library.TrainerCallback,), {})
    last = type("Last", (library.TrainerCallback,), {})
    monkeypatch.setattr(module, "DEFAULT_CALLBACKS", [*module.DEFAULT_CALLBACKS, first()])
    monkeypatch.setattr(module, "DEFAULT_PROGRESS_CALLBACK", last)
    assert names_of(new_trainer(library, tmp_path, disable_tqdm=False)) == ["DefaultFlowCallback", "First", "Last"]
    assert names_of(new_trainer(library, tmp_path))[-1] == "PrinterCallback"


def test_the_package_and_its_trainer_module_share_the_defaults(tmp_path, monkeypatch):
    """What is assigned to one, or put into its list, is seen through the other; afterwards all is as before."""
    assert names_of(new_trainer(hf_compat, tmp_path)) == ["DefaultFlowCallback", "PrinterCallback"]
    with monkeypatch.context() as patch:
        patch.setattr(hf_compat, "DEFAULT_CALLBACKS", [hf_compat.DefaultFlowCallback])
        hf_compat.trainer.DEFAULT_CALLBACKS.append(hf_compat.EarlyStoppingCallback)
        assert names_of(new_trainer(hf_compat, tmp_path))[1] == "EarlyStoppingCallback"
    assert names_of(new_trainer(hf_compat, tmp_path)) == ["DefaultFlowCallback", "PrinterCallback"]
    from hf_compat import DEFAULT_PROGRESS_CALLBACK

    assert DEFAULT_PROGRESS_CALLBACK is hf_compat.trainer.DEFAULT_PROGRESS_CALLBACK is hf_compat.ProgressCallback


@pytest.mark.parametrize("kind", LIBRARIES)
def test_warnings_about_callbacks_hold_upstreams_phrases(kind, tmp_path, caplog, monkeypatch):
    """One that is added twice, and a list without a flow; on upstream's logger, as one finished text."""
    library = LIBRARIES[kind]
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    new_trainer(library, tmp_path, [library.PrinterCallback])
    monkeypatch.setattr(MODULES[kind], "DEFAULT_CALLBACKS", [])
    new_trainer(library, tmp_path)
    (twice, without) = (record for record in caplog.records if record.name == "transformers.trainer_callback")
    assert f"You are adding a {library.PrinterCallback} to the callbacks" in twice.msg
    assert "there is already one" in twice.msg
    assert "will not work properly" in without.msg


def _decisions(callback, args, **state):
    """Return the switches that ``callback`` sets on each of 7 update steps and at the end of 3 epochs."""
    decided = []
    for step in range(1, 8):
        control = TrainerControl()
        callback.on_step_end(args, TrainerState(global_step=step, max_steps=7, **state), control)
        decided.append([flag for flag in CONTROL_FLAGS if getattr(control, flag)])
    for epoch in (0.5, 1.0, 2.0):
        control = TrainerControl()
        callback.on_epoch_end(args, TrainerState(epoch=epoch, **state), control)
        decided.append([flag for flag in CONTROL_FLAGS if getattr(control, flag)])
    return decided


@pytest.mark.parametrize("strategy", ["no", "steps", "epoch"])
@pytest.mark.parametrize("first", [False, True], ids=["", "first step too"])
@pytest.mark.parametrize("delay", [0, 1, 4, 7, 9], ids=lambda delay: f"delay {delay}")
def test_the_flow_decides_as_upstreams(strategy, first, delay):
    """Log, evaluate, save and stop on the steps and epochs that the installed release chooses."""
    args = callback_args(
        logging_strategy=strategy,
        eval_strategy=strategy,
        save_strategy=strategy,
        logging_first_step=first,
        eval_delay=delay,
    )
    for intervals in ((2, 3, 4), (7, 7, 7), (1, 1, 0)):
        state = dict(zip(("logging_steps", "eval_steps", "save_steps"), intervals, strict=True))
        mine = _decisions(ours.DefaultFlowCallback(), args, **state)
        assert mine == _decisions(upstream.DefaultFlowCallback(), args, **state)


@pytest.mark.parametrize(
    ("release", "evaluated"), [("4.57", [3, 6]), ("5.3", [3, 6]), ("5.4", [3, 6, 7]), ("5.24", [3, 6, 7])]
)
def test_the_last_step_is_evaluated_since_5_4(release, evaluated):
    """Of 7 steps with an interval of 3 the last is evaluated by later releases only."""
    args = callback_args(semantics=release)
    decided = _decisions(ours.DefaultFlowCallback(), args, logging_steps=9, eval_steps=3, save_steps=9)
    assert [step for step in range(1, 8) if "should_evaluate" in decided[step - 1]] == evaluated
