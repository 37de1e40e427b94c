"""Bars of rich show what those of tqdm do."""

from __future__ import annotations

import re
import sys

import pytest

import hf_compat
from hf_compat.errors import MissingPackageError
from tests.support.terminal import logs_among, on_terminal, trainer_with_bars


def names_of(trainer):
    return [type(callback).__name__ for callback in trainer.callback_handler.callbacks]


def test_rich_shows_the_same(tmp_path, monkeypatch):
    """Rich's bar ends full, with the figures below it and the logs above; the evaluation's bar has vanished."""
    with on_terminal(monkeypatch, columns=200) as terminal:
        trainer = trainer_with_bars(tmp_path, callbacks=[hf_compat.RichProgressCallback()])
        trainer.train()
    assert names_of(trainer) == ["DefaultFlowCallback", "RichProgressCallback"]
    *above, bar, below = terminal.screen
    assert re.fullmatch(r"Epoch 2.00/2 ━+ 8/8 \d\d:\d\d < 00:00 [\d.]+ (it/s|s/it)", bar)
    assert re.fullmatch(r"loss=[\d.]+  lr=[\d.e+-]+  [\d,.]+ samples/s", below)
    assert len(logs_among(above)) == len(above) == 11
    assert "Evaluation" in terminal.text
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")


def test_rich_outside_of_training(tmp_path, monkeypatch):
    """The bar of an evaluation of its own stays."""
    with on_terminal(monkeypatch) as terminal:
        trainer_with_bars(tmp_path, callbacks=[hf_compat.RichProgressCallback]).evaluate()
    assert re.fullmatch(r"Evaluation ━+ 3/3 .*", terminal.screen[-1])


def test_rich_without_a_terminal_prints_the_logs(tmp_path, capsys):
    """There are no bars, and nothing but the lines."""
    trainer_with_bars(tmp_path, callbacks=[hf_compat.RichProgressCallback()]).train()
    written = capsys.readouterr()
    assert written.err == ""
    assert len(logs_among(written.out.splitlines())) == len(written.out.splitlines()) == 11


def test_rich_is_an_extra(monkeypatch):
    """Without the package the error says how to install it."""
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingPackageError, match=r'pip install "hf-compat\[rich\]"'):
        hf_compat.RichProgressCallback()


def test_one_that_draws_with_rich_draws_alone(tmp_path, monkeypatch):
    """Lightning's ``RichProgressBar`` takes the place of the default bar; its terminal has each log on a line."""
    from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

    with on_terminal(monkeypatch, columns=200) as terminal:
        trainer = trainer_with_bars(tmp_path, callbacks=[RichProgressBar()])
        trainer.train()
    assert names_of(trainer) == ["DefaultFlowCallback", "PrinterCallback"]
    assert len(logs_among(terminal.screen)) == 11
    assert "it/s]" not in terminal.text
    assert names_of(trainer_with_bars(tmp_path, callbacks=[TQDMProgressBar()]))[-1] == "ProgressCallback"
