"""What a person sees of a run: bars on a pseudo-terminal, lines elsewhere, next to transformers' own."""

from __future__ import annotations

import ast
import re
import sys

import pytest
import transformers
from transformers import trainer_callback as upstream

import hf_compat
import hf_compat.callbacks as ours
from hf_compat.callbacks import console
from hf_compat.callbacks.console import ProgressStats, TerminalBar
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import fire
from tests.support.paths import SCRIPTS
from tests.support.processes import torchrun
from tests.support.terminal import logs_among, on_terminal, run_on_terminal, screen_of, trainer_with_bars

LIBRARIES = {"ours": hf_compat, "transformers": transformers}


def without_times(text):
    """Return a line of a bar with its times and speed replaced."""
    return re.sub(r"\[.*\]", "[...]", text)


class Fails(hf_compat.TrainerCallback):
    """Raises an error in the evaluation after the first epoch."""

    def on_prediction_step(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise RuntimeError("no more")


FIGURES = r"loss=[\d.]+, lr=[\d.e+-]+, [\d,.]+ samples/s, [\d.]+ (it/s|s/it)"


def test_one_bar_with_its_figures(tmp_path, monkeypatch):
    """At the end the terminal shows the logs and below them one full bar; the evaluation's was there, and vanished."""
    with on_terminal(monkeypatch, columns=140) as terminal:
        trainer_with_bars(tmp_path).train()
    *above, last = terminal.screen
    assert re.fullmatch(rf"Epoch 2.00/2: 100%\|█+\| 8/8 \[\d\d:\d\d<00:00, {FIGURES}\]", last)
    assert len(last) <= 140
    assert all(line.startswith("{") for line in above)
    assert [names[0] for names in logs_among(above)] == [*["loss"] * 4, "eval_loss"] * 2 + ["train_runtime"]
    assert re.search(r"Evaluation: +\d+%\|", terminal.text)
    assert "Evaluation" not in "".join(terminal.screen)
    assert terminal.text.endswith("\n")


def test_the_lines_on_a_terminal_are_upstreams(tmp_path, monkeypatch):
    """The logs above the bar have transformers' names in its order, and values as texts if it has them so."""
    found = {}
    for name, library in LIBRARIES.items():
        with on_terminal(monkeypatch) as terminal:
            trainer_with_bars(tmp_path, library).train()
        lines = [line for line in terminal.screen if line.startswith("{")]
        found[name] = logs_among(lines), [{type(one) for one in ast.literal_eval(line).values()} for line in lines]
    assert found["ours"] == found["transformers"]


def test_off_a_terminal_bars_are_upstreams(tmp_path, capsys):
    """In a file the first and the last drawing of both bars are those of transformers, and so are the lines."""
    found = {}
    for name, library in LIBRARIES.items():
        trainer = trainer_with_bars(tmp_path, library)
        trainer.train()
        trainer.evaluate()
        written = capsys.readouterr()
        bars = [without_times(bar.strip()) for bar in re.split(r"[\r\n]|\x1b\[A", written.err) if "| " in bar]
        found[name] = bars[0], bars[-1], {bar for bar in bars if "100%" in bar}, logs_among(written.out.splitlines())
    assert found["ours"] == found["transformers"]
    assert found["ours"][0] == "0%|          | 0/8 [...]"


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_bars_for_terminals_alone(by, tmp_path, monkeypatch, capsys):
    """Either switch leaves the bars away where there is no terminal; the logs are written, and a terminal has bars."""
    if by == "variable":
        monkeypatch.setenv("HF_COMPAT_TERMINAL_BARS_ONLY", "1")
    given = {"terminal_only": True} if by == "argument" else {}
    monkeypatch.setattr(hf_compat, "DEFAULT_PROGRESS_CALLBACK", hf_compat.ProgressCallback(**given))
    trainer = trainer_with_bars(tmp_path)
    trainer.train()
    trainer.evaluate()
    written = capsys.readouterr()
    assert written.err == ""
    assert len(logs_among(written.out.splitlines())) == 11
    with on_terminal(monkeypatch) as terminal:
        trainer.train()
    assert terminal.screen[-1].startswith("Epoch 2.00/2: 100%")


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_lines_where_there_is_no_terminal(by, tmp_path, monkeypatch, capsys):
    """With `seconds` a file gets a line for each of them that has passed, and one at the end; a terminal gets bars."""
    if by == "variable":
        monkeypatch.setenv("HF_COMPAT_PROGRESS_SECONDS", "60")
    given = {"seconds": 60} if by == "argument" else {}
    monkeypatch.setattr(hf_compat, "DEFAULT_PROGRESS_CALLBACK", hf_compat.ProgressCallback(**given))
    trainer = trainer_with_bars(tmp_path)
    trainer.train()
    trainer.evaluate()
    training, evaluation = capsys.readouterr().err.splitlines()
    assert re.match(r"Epoch 2\.00/2: 8/8 \(100%\) in 00:0\d, loss=\S+, lr=\S+, .* samples/s, .*(it/s|s/it)$", training)
    assert re.match(r"Batches: (\d+)/\1 \(100%\) in 00:0\d, .*(it/s|s/it)$", evaluation)
    with on_terminal(monkeypatch) as terminal:
        trainer.train()
    assert terminal.screen[-1].startswith("Epoch 2.00/2: 100%")


def test_lines_have_the_time_left(tmp_path, monkeypatch, capsys):
    """Each line is whole: the part that is done, the time it took and the time left; logs are on the other stream."""
    monkeypatch.setattr(hf_compat, "DEFAULT_PROGRESS_CALLBACK", hf_compat.ProgressCallback(seconds=0))
    trainer = trainer_with_bars(tmp_path)
    trainer.train()
    written = capsys.readouterr()
    assert len(logs_among(written.out.splitlines())) == len(written.out.splitlines()) == 11
    lines = written.err.splitlines()
    assert "\r" not in written.err
    assert all(re.match(r"(Epoch \d\.\d\d/2|Evaluation): \d+/\d+ \(\d+%\) in 00:\d\d, ", line) for line in lines)
    assert re.search(r"^Epoch 0\.50/2: 2/8 \(25%\) in .*, 00:\d\d left, ", written.err, re.MULTILINE)
    assert re.search(r"^Evaluation: 1/\d+ .*, 00:\d\d left, ", written.err, re.MULTILINE)


def test_a_variable_that_is_no_number_is_refused(tmp_path, monkeypatch):
    """A variable that is no number of seconds is an error that names it and the remedy."""
    monkeypatch.setenv("HF_COMPAT_PROGRESS_SECONDS", "often")
    with pytest.raises(TrainerSetupError, match="HF_COMPAT_PROGRESS_SECONDS=often"):
        trainer_with_bars(tmp_path).train()


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_without_tqdm_there_are_only_lines(library, tmp_path, monkeypatch):
    """`disable_tqdm=True`: the terminal gets the logs, one line each, and no sign that moves the cursor."""
    with on_terminal(monkeypatch) as terminal:
        trainer_with_bars(tmp_path, library, disable_tqdm=True).train()
    assert len(logs_among(terminal.screen)) == len(terminal.screen) == 11
    assert "\x1b" not in terminal.text
    assert "\r" not in terminal.text.replace("\r\n", "")


def test_a_resumed_run_begins_where_it_was(tmp_path, monkeypatch):
    """The bar of a resumed run starts at its update step, so that speed and time left are those of the rest."""
    trainer_with_bars(tmp_path, save_strategy="steps", save_steps=4, disable_tqdm=True).train()
    trainer = trainer_with_bars(tmp_path, num_train_epochs=3)
    with on_terminal(monkeypatch) as terminal:
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert re.match(r"\r?Epoch 1.00/3:  33%\|█+[^|]*\| 4/12 \[00:00<\?\]", terminal.text)
    assert re.fullmatch(rf"Epoch 3.00/3: 100%\|█+\| 12/12 \[\d\d:\d\d<00:00, {FIGURES}\]", terminal.screen[-1])


@pytest.mark.parametrize("bars", ["tqdm", "rich"])
def test_an_error_is_told_below_the_bars(bars, tmp_path, monkeypatch):
    """What ends a run closes its bars: the cursor is visible, at the begin of a line; the next run has its own bars."""
    callbacks = [Fails(), *([hf_compat.RichProgressCallback()] if bars == "rich" else ())]
    with on_terminal(monkeypatch) as terminal:
        trainer = trainer_with_bars(tmp_path, callbacks=callbacks)
        with pytest.raises(RuntimeError, match="no more"):
            trainer.train()
        print("told here")
        assert sys.stdout is sys.stderr
    assert terminal.screen[-1] == "told here"
    assert "Evaluation" not in "".join(terminal.screen)
    assert terminal.text.rfind("\x1b[?25h") >= terminal.text.rfind("\x1b[?25l")
    trainer.remove_callback(Fails)
    with on_terminal(monkeypatch) as terminal:
        trainer.train()
    assert " 8/8 " in "".join(terminal.screen)


def test_an_evaluation_that_failed_leaves_no_bar_behind(tmp_path, monkeypatch):
    """The next evaluation draws one of its own, from its first batch on."""
    trainer = trainer_with_bars(tmp_path, callbacks=[Fails()])
    with on_terminal(monkeypatch) as terminal:
        trainer.state.global_step = 4
        with pytest.raises(RuntimeError, match="no more"):
            trainer.evaluate()
        trainer.state.global_step = 0
        trainer.evaluate()
    assert " 3/3 " in terminal.screen[-1]


@pytest.mark.parametrize("kind", [hf_compat.ProgressCallback, hf_compat.RichProgressCallback])
def test_other_ranks_are_silent(kind, tmp_path, monkeypatch):
    """A rank other than 0 writes nothing."""
    args = trainer_with_bars(tmp_path).args
    state = hf_compat.TrainerState(max_steps=4, is_world_process_zero=False, is_local_process_zero=False)
    control, callback = hf_compat.TrainerControl(), kind()
    with on_terminal(monkeypatch) as terminal:
        callback.on_train_begin(args, state, control)
        state.global_step = 1
        callback.on_step_end(args, state, control)
        callback.on_prediction_step(args, state, control, eval_dataloader=[1, 2])
        callback.on_evaluate(args, state, control)
        callback.on_log(args, state, control, logs={"loss": 1.0})
        callback.on_train_end(args, state, control)
    assert terminal.text == ""


def test_a_script_decides_what_its_bar_says(tmp_path, monkeypatch):
    """A description and a postfix that a subclass sets on ``training_bar`` are shown instead of ours."""

    class Own(hf_compat.ProgressCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            self.training_bar.set_description("mine")
            self.training_bar.set_postfix(accuracy=0.5)

    monkeypatch.setattr(hf_compat, "DEFAULT_PROGRESS_CALLBACK", Own)
    with on_terminal(monkeypatch) as terminal:
        trainer_with_bars(tmp_path, eval_strategy="no").train()
    assert re.fullmatch(r"mine: 100%\|█+\| 8/8 \[\d\d:\d\d<00:00, accuracy=0.5\]", terminal.screen[-1])


# What fits on a line


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, "Epoch 1.50/3:  50%|BAR| 24/48 [00:10<00:10, loss=0.5, lr=0.001, 18 samples/s, 2.30 it/s]"),
        (80, "Epoch 1.50/3:  50%|BAR| 24/48 [00:10<00:10, loss=0.5, lr=0.001, 18 samples/s]"),
        (77, "Epoch 1.50/3: |BAR| 24/48 [00:10<00:10, loss=0.5, lr=0.001, 18 samples/s]"),
        (60, "Epoch 1.50/3:  50%|BAR| 24/48 [00:10<00:10, loss=0.5]"),
        (44, "Epoch 1.50/3: |BAR| 24/48 [00:10<00:10]"),
        (36, "50%|BAR| 24/48 [00:10<00:10]"),
    ],
)
def test_a_narrow_terminal_shows_what_fits(columns, shown, tmp_path, monkeypatch):
    """The least important goes first, whole words at a time, and at least six characters of the bar are left."""
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    args = trainer_with_bars(tmp_path).args
    known = ProgressStats()
    loader = type("Loader", (), {"total_batch_size": 8})()
    known.begin(args, hf_compat.TrainerState(num_train_epochs=3), loader)
    known.advance(hf_compat.TrainerState(global_step=1, epoch=0.1, num_train_epochs=3))
    now = 110.0
    known.advance(hf_compat.TrainerState(global_step=24, epoch=1.5, num_train_epochs=3))
    known.log({"loss": 0.5, "learning_rate": 1e-3, "grad_norm": 1.0})
    bar = TerminalBar(known, total=48, initial=24, ncols=columns, file=open("/dev/null", "w"))  # noqa: SIM115
    line = bar.format_meter(**bar.format_dict | {"elapsed": 10.0})
    bar.close()
    bar.fp.close()
    assert len(line) == columns
    drawn = re.search(r"\|(.*?)\|", line)[1]
    assert len(drawn) >= 6
    assert line.replace(drawn, "BAR").strip() == shown


# Processes


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--rich"]], ids=["tqdm", "rich"])
def test_a_process_on_a_terminal(words, tmp_path):
    """A script's terminal ends with a full bar; what it prints to a file is there, and not on the terminal."""
    ended = run_on_terminal([sys.executable, "-W", "ignore", SCRIPTS / "progress_script.py", tmp_path, *words])
    assert ended.code == 0, ended.output
    assert any(re.match(r"Epoch 2.00/2.* 8/8 ", line) for line in screen_of(ended.output))
    with open(tmp_path / "log", "w") as log:
        command = [sys.executable, "-W", "ignore", SCRIPTS / "progress_script.py", tmp_path, *words]
        ended = run_on_terminal(command, stdout=log)
    assert ended.code == 0, ended.output
    assert any(re.match(r"Epoch 2.00/2.* 8/8 ", line) for line in screen_of(ended.output))
    assert not logs_among(screen_of(ended.output))
    if not words:
        ended = run_on_terminal(["env", "TQDM_DISABLE=1", *command])
        assert len(logs_among(screen_of(ended.output))) == len(screen_of(ended.output)) == 11
    assert len(logs_among((tmp_path / "log").read_text().splitlines())) == 11


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--rich"]], ids=["tqdm", "rich"])
def test_one_of_two_processes_shows(words, tmp_path):
    """Of two ranks one writes: each log is there once, and so is the full bar, if bars are drawn in a file."""
    ended = torchrun(SCRIPTS / "progress_script.py", tmp_path, *words)
    assert ended.code == 0, ended.output
    lines = re.split(r"[\r\n]+|\x1b\[A", ended.output)
    assert len(logs_among(lines)) == 7  # 4 update steps, two evaluations, the end
    assert sum("0/4 [00:00<?" in line for line in lines) == (0 if words else 1)


@pytest.mark.slow
def test_an_interrupt_ends_on_a_line_of_its_own(tmp_path):
    """The traceback of an error begins at the begin of a line, below the bar."""
    ended = run_on_terminal([sys.executable, "-W", "ignore", SCRIPTS / "progress_script.py", tmp_path, "--interrupt"])
    assert ended.code not in (0, None)
    assert "Traceback (most recent call last):" in screen_of(ended.output)


def test_other_processes_show_nothing(capsys):
    """Bars are for the first process of all, lines for the first of every machine."""
    process = {"is_world_process_zero": False, "is_local_process_zero": False}
    for callback in (ours.ProgressCallback(), ours.PrinterCallback()):
        for event in ("on_train_begin", "on_step_end", "on_prediction_step", "on_evaluate", "on_log", "on_train_end"):
            fire(callback, event, [1, 2], **process)
    assert (*capsys.readouterr(),) == ("", "")


@pytest.mark.parametrize("library", [ours, upstream], ids=["ours", "transformers"])
def test_bars_follow_the_run(library, capsys):
    """The first bar is at the update step; the second goes over the batches of a loader with a length, then closes."""
    callback = library.ProgressCallback()
    fire(callback, "on_train_begin", max_steps=10)
    fire(callback, "on_step_end", global_step=4)
    fire(callback, "on_step_end", global_step=5)
    assert (callback.training_bar.n, callback.training_bar.total, callback.current_step) == (5, 10, 5)
    fire(callback, "on_prediction_step", iter([1]))
    assert callback.prediction_bar is None
    for _ in range(2):
        fire(callback, "on_prediction_step", [1, 2, 3])
    assert (callback.prediction_bar.n, callback.prediction_bar.total, callback.prediction_bar.leave) == (2, 3, False)
    fire(callback, "on_evaluate")
    assert callback.prediction_bar is None
    fire(callback, "on_prediction_step", [1, 2, 3])
    fire(callback, "on_predict")
    assert callback.prediction_bar is None
    fire(callback, "on_train_end")
    assert callback.training_bar is None


def test_a_run_that_starts_over_has_one_bar(capsys):
    """A second on_train_begin closes the bar of the first attempt."""
    callback = ours.ProgressCallback()
    fire(callback, "on_train_begin")
    first = callback.training_bar
    fire(callback, "on_train_begin")
    assert first.disable  # what tqdm sets as it closes a bar
    assert callback.training_bar is not first
    fire(callback, "on_train_end")
