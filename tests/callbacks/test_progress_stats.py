"""The figures of a bar: a pace, and a total where a loader has no length."""

from __future__ import annotations

import re

import hf_compat
from hf_compat.callbacks import progress_stats
from hf_compat.callbacks.progress_stats import Pace
from tests.support.helpers import PlainModel, Stream, vector_rows
from tests.support.terminal import BARS_ALONE, on_terminal


def test_a_pace_leaves_the_first_step_out(monkeypatch):
    """After a first step of 60 s and ten of 1 s, with a pause of 10 s, thirty more are expected to take 60 s."""
    now = 0.0
    monkeypatch.setattr(progress_stats.time, "monotonic", lambda: now)
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
