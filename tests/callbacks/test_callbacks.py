"""The built-in callbacks, side by side with those of the installed transformers."""

from __future__ import annotations

import pytest
from transformers import trainer_callback as upstream

import hf_compat.callbacks as ours
from hf_compat.errors import ArgumentsError
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import CONTROL_FLAGS, callback_args


def _fire(callback, event, loader=None, **state):
    """Fire ``event`` at one callback."""
    given = {"eval_dataloader": loader, "metrics": {}, "logs": {}}
    getattr(callback, event)(callback_args(), TrainerState(**{"max_steps": 10, **state}), TrainerControl(), **given)


def _log(callback, logs, **fields):
    """Let ``callback`` show ``logs`` within a run."""
    _fire(callback, "on_train_begin")
    callback.on_log(callback_args(**fields), TrainerState(), TrainerControl(), logs=logs)
    _fire(callback, "on_train_end")


# The flow


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


# Progress


LOGS = {
    "loss": 0.123456789,
    "grad_norm": float("nan"),
    "epoch": 0.3333333,
    "total_flos": 1e15,
    "step": 3,
    "text": "x" * 9,
}


@pytest.mark.parametrize("name", ["ProgressCallback", "PrinterCallback"])
def test_logs_are_shown_as_upstream_shows_them(name, capsys):
    """The same line on the console, and the same left of the dict that all callbacks share."""
    shown, left = [], []
    for library in (ours, upstream):
        logs = dict(LOGS)
        _log(getattr(library, name)(), logs)
        shown.append(capsys.readouterr().out)
        left.append(logs)
    assert shown[0] == shown[1]
    assert left[0] == left[1]


@pytest.mark.parametrize(("release", "loss"), [("4.57", "0.123456789"), ("5.0", "'0.1235'")])
@pytest.mark.parametrize("name", ["ProgressCallback", "PrinterCallback"])
def test_floats_are_short_since_5_0(name, release, loss, capsys):
    """The semantics asked for decide how many digits are shown."""
    _log(getattr(ours, name)(), dict(LOGS), semantics=release)
    assert f"'loss': {loss}," in capsys.readouterr().out


def test_long_texts_are_not_shown(capsys):
    """A text longer than ``max_str_len`` is replaced by its length."""
    _log(ours.ProgressCallback(max_str_len=8), dict(LOGS))
    out = capsys.readouterr().out
    assert "x" * 9 not in out
    assert "9 characters" in out


def test_other_processes_show_nothing(capsys):
    """Bars are for the first process of all, lines for the first of every machine."""
    process = {"is_world_process_zero": False, "is_local_process_zero": False}
    for callback in (ours.ProgressCallback(), ours.PrinterCallback()):
        for event in ("on_train_begin", "on_step_end", "on_prediction_step", "on_evaluate", "on_log", "on_train_end"):
            _fire(callback, event, [1, 2], **process)
    assert (*capsys.readouterr(),) == ("", "")


@pytest.mark.parametrize("library", [ours, upstream], ids=["ours", "transformers"])
def test_bars_follow_the_run(library, capsys):
    """The first bar is at the update step; the second goes over the batches of a loader with a length, then closes."""
    callback = library.ProgressCallback()
    _fire(callback, "on_train_begin", max_steps=10)
    _fire(callback, "on_step_end", global_step=4)
    _fire(callback, "on_step_end", global_step=5)
    assert (callback.training_bar.n, callback.training_bar.total, callback.current_step) == (5, 10, 5)
    _fire(callback, "on_prediction_step", iter([1]))
    assert callback.prediction_bar is None
    for _ in range(2):
        _fire(callback, "on_prediction_step", [1, 2, 3])
    assert (callback.prediction_bar.n, callback.prediction_bar.total, callback.prediction_bar.leave) == (2, 3, False)
    _fire(callback, "on_evaluate")
    assert callback.prediction_bar is None
    _fire(callback, "on_prediction_step", [1, 2, 3])
    _fire(callback, "on_predict")
    assert callback.prediction_bar is None
    _fire(callback, "on_train_end")
    assert callback.training_bar is None


def test_a_run_that_starts_over_has_one_bar(capsys):
    """A second on_train_begin closes the bar of the first attempt."""
    callback = ours.ProgressCallback()
    _fire(callback, "on_train_begin")
    first = callback.training_bar
    _fire(callback, "on_train_begin")
    assert first.disable  # what tqdm sets as it closes a bar
    assert callback.training_bar is not first
    _fire(callback, "on_train_end")


# Early stopping


@pytest.mark.parametrize("greater", [True, False], ids=["greater", "smaller"])
@pytest.mark.parametrize(("patience", "threshold"), [(1, 0.0), (2, 0.0), (2, 0.25)])
@pytest.mark.parametrize("metric", ["loss", "eval_loss", "missing"])
def test_early_stopping_counts_as_upstreams(greater, patience, threshold, metric):
    """Count and stop after every evaluation are equal; the best is that of the evaluations before."""
    args = callback_args(metric_for_best_model=metric, greater_is_better=greater)
    found = []
    for library in (ours, upstream):
        callback, best, course = library.EarlyStoppingCallback(patience, threshold), None, []
        for value in (1.0, 1.0, 0.875, 0.5, float("nan"), 0.75, 2.0, 2.125):
            control = TrainerControl()
            callback.on_evaluate(args, TrainerState(best_metric=best), control, {"eval_loss": value})
            course.append((callback.early_stopping_patience_counter, control.should_training_stop))
            if best is None or (value > best if greater else value < best):
                best = value
        found.append((course, callback.state()))
    assert found[0] == found[1]


def test_early_stopping_says_what_the_arguments_lack(caplog):
    """Both problems come in one error that names the fields and what to set; weights of the end are warned of."""
    callback, state = ours.EarlyStoppingCallback(), TrainerState()
    with pytest.raises(ArgumentsError) as error:
        callback.on_train_begin(callback_args(metric_for_best_model=None, eval_strategy="no"), state, TrainerControl())
    first, second = error.value.problems
    assert "metric_for_best_model=None" in first
    assert "'eval_loss'" in first
    assert "eval_strategy='no'" in second
    assert not caplog.records
    callback.on_train_begin(callback_args(load_best_model_at_end=False), state, TrainerControl())
    assert "without load_best_model_at_end=True" in caplog.text
