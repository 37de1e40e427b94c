"""The figures of a bar: a pace, and a total where a loader has no length; and logs as lines."""

from __future__ import annotations

import re

import pytest
from transformers import trainer_callback as upstream

import hf_compat
import hf_compat.callbacks as ours
from hf_compat.callbacks import console
from hf_compat.callbacks.console import Pace
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import PlainModel, Stream, callback_args, fire, vector_rows
from tests.support.terminal import BARS_ALONE, on_terminal


def test_a_pace_leaves_the_first_step_out(monkeypatch):
    """After a first step of 60 s and ten of 1 s, with a pause of 10 s, thirty more are expected to take 60 s."""
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    pace = Pace(5)
    assert (pace.rate, pace.seconds_left(46)) == (None, None)
    now = 60.0
    pace.advance(6)
    assert pace.seconds_left(46) == 40 * 60
    now = 80.0
    pace.advance(16)
    assert pace.rate == 0.5
    assert pace.seconds_left(46) == 60
    assert pace.mean == 11 / 80
    assert pace.elapsed == 80


def test_without_a_length_there_is_a_total_all_the_same(tmp_path, monkeypatch):
    """A stream's epochs have no known number: the bar counts to ``max_steps``, and an evaluation has none."""
    args = hf_compat.TrainingArguments(
        str(tmp_path),
        **BARS_ALONE,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        disable_tqdm=False,
    )
    rows = Stream(vector_rows(40))
    with on_terminal(monkeypatch) as terminal:
        hf_compat.Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows).train()
    assert re.match(r"Epoch \d\.\d\d: 100%\|█+\| 3/3 \[", terminal.screen[-1])
    assert "Evaluation" not in terminal.text


def _log(callback, logs, **fields):
    """Let ``callback`` show ``logs`` within a run."""
    fire(callback, "on_train_begin")
    callback.on_log(callback_args(**fields), TrainerState(), TrainerControl(), logs=logs)
    fire(callback, "on_train_end")


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
