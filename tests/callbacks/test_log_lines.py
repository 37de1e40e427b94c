"""Logs as the lines on the console, side by side with those of the installed transformers."""

from __future__ import annotations

import pytest
from transformers import trainer_callback as upstream

import hf_compat.callbacks as ours
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import callback_args, fire


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
