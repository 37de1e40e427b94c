"""A run in a notebook: the table of losses, next to transformers' own."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
import torch
from transformers.utils import notebook as upstream

from hf_compat.callbacks import notebook as ours
from hf_compat.callbacks.notebook import NotebookProgressBar, NotebookTrainingTracker
from tests.support import helpers
from tests.support.parity import Kit, clean_process
from tests.support.paths import ROOT
from tests.support.scenarios.common import accuracy, plain


def cells(code):
    """Return the lines of the HTML table in ``code``, short lines filled up."""
    lines = [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in re.findall(r"<tr.*?>(.*?)</tr>", code, re.DOTALL)]
    return [[*line, *["No Log"] * (len(lines[0]) - len(line))] for line in lines]


def drawn(which, folder, fields, sets=None):
    """Train under a library with its notebook callback; return the table it drew last."""
    kit = Kit(which, folder)
    shown = (upstream if which == "upstream" else ours).NotebookProgressCallback()
    trackers = []

    class Keeps(kit.TrainerCallback):
        def on_train_begin(self, *_, **__):
            trackers.append(shown.training_tracker)

    with clean_process():
        torch.manual_seed(0)
        given = {} if sets is None else {"eval_dataset": sets}
        trainer = plain(kit, fields=fields, compute_metrics=accuracy, callbacks=[shown, Keeps()], **given)
        trainer.train()
    return cells(trackers[0].html_code)


TWO_SETS = {"near": helpers.ListDataset(helpers.vector_rows(3)), "far": helpers.ListDataset(helpers.vector_rows(4))}


@pytest.mark.parametrize(
    ("fields", "sets", "columns"),
    [
        pytest.param({}, None, ["Step", "Training Loss"], id="no evaluation"),
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 2},
            None,
            ["Step", "Training Loss", "Validation Loss", "Accuracy"],
            id="by steps",
        ),
        pytest.param(
            {"eval_strategy": "epoch", "num_train_epochs": 2},
            None,
            ["Epoch", "Training Loss", "Validation Loss", "Accuracy"],
            id="by epochs",
        ),
        pytest.param(
            {"eval_strategy": "epoch", "num_train_epochs": 2, "logging_strategy": "no"},
            TWO_SETS,
            ["Epoch", "Training Loss", "Validation Loss", "Near Accuracy", "Near Loss", "Far Accuracy", "Far Loss"],
            id="two sets, no log",
        ),
    ],
)
def test_tables_are_upstreams(fields, sets, columns, tmp_path, capsys):
    """Both libraries draw the same columns and values: a line per evaluation, or per log."""
    expected, found = (drawn(which, tmp_path / which, fields, sets) for which in ("upstream", "ours"))
    assert found == expected
    assert set(found[0]) >= set(columns)
    assert found[0][0] == columns[0]
    assert len(found) > 2


def test_bars_show_where_the_run_is(capsys):
    """A bar has its value, its total and its comment; the evaluation's bar stands below the table while it runs."""
    tracker = NotebookTrainingTracker(10, ["Step"])
    tracker.update(4, comment="Epoch <1>/2")
    assert "<progress value='4' max='10'" in tracker.html_code
    assert "[ 4/10 00:00, Epoch &lt;1&gt;/2]" in tracker.html_code
    tracker.write_line({"Step": 4, "Loss": 0.5})
    tracker.write_line({"Step": 4, "Accuracy": 1.0})
    tracker.write_line({"Step": 8, "Loss": 0.25})
    child = tracker.add_child(3)
    child.update(3)
    assert cells(tracker.html_code) == [
        ["Step", "Loss", "Accuracy"],
        ["4", "0.500000", "1.000000"],
        ["8", "0.250000", "No Log"],
    ]
    assert tracker.html_code.endswith(child.html_code)
    tracker.remove_child()
    assert child.html_code not in tracker.html_code
    bar = NotebookProgressBar(2, prefix="a & b", leave=False)
    bar.update(1)
    bar.update(2)
    assert bar.html_code.startswith("<div>a &amp; b<progress value='2' max='2'")


def test_this_is_no_notebook():
    """A test runs in no notebook, so a Trainer shows the usual bar."""
    assert ours.is_in_notebook() is False


NOTEBOOK = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.support import helpers
from {library} import Trainer, TrainingArguments

rows = helpers.ListDataset(helpers.vector_rows(8))
args = TrainingArguments(
    {folder!r}, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=False, dataloader_pin_memory=False,
    eval_strategy="steps", eval_steps=2, logging_steps=1, max_steps=4, per_device_train_batch_size=4, seed=1,
)
torch.manual_seed(0)
model = helpers.PlainModel(dropout=0.0)
hits = lambda pair: {{"accuracy": float((pair.predictions.argmax(-1) == pair.label_ids).mean())}}
trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, compute_metrics=hits)
trainer.train();
"""
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=1200).execute()
nbformat.write(notebook, sys.argv[1])
"""


def tables_of(cell):
    """Return the HTML tables among the outputs of a cell."""
    shown = [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
    return [code for code in shown if "<table" in code]


@pytest.mark.slow
def test_a_real_notebook(tmp_path):
    """Executed in Jupyter, a Trainer shows one table that replaced itself, with the lines of transformers' own."""
    codes = [
        NOTEBOOK.format(library=library, root=str(ROOT), folder=str(tmp_path / library))
        for library in ("hf_compat", "transformers")
    ]
    path = tmp_path / "run.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in codes]), path)
    subprocess.run([sys.executable, "-W", "ignore", "-c", EXECUTE, str(path)], check=True, cwd=tmp_path)
    found, expected = (tables_of(cell) for cell in nbformat.read(path, as_version=4).cells)
    assert len(found) == len(expected) == 1
    assert "<progress value='4' max='4'" in found[0]
    assert cells(found[0]) == cells(expected[0])
    assert cells(found[0])[0] == ["Step", "Training Loss", "Validation Loss", "Accuracy"]
    assert [line[0] for line in cells(found[0])[1:]] == ["2", "4"]
