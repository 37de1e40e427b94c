"""``hf-compat plot`` reads the logs of either Trainer's runs and draws them; files of others are not replaced."""

import html.parser
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import hf_compat
from hf_compat import cli
from hf_compat.errors import CheckpointError
from hf_compat.tools.plot.drawing import smoothed, usual_weight
from hf_compat.tools.plot.history import panels_of, read_histories, read_history
from tests.support.trainers import new_trainer


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def write_state(folder, logs, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    state = {"global_step": max((log["step"] for log in logs), default=0), "log_history": logs, **fields}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def losses(*values, every=1):
    return [{"loss": value, "step": every * (index + 1)} for index, value in enumerate(values)]


def train_and_evaluate(library, folder, *, resume=None, **fields):
    """Train, and save the state, which has evaluations."""
    cadence = {"logging_steps": 1, "save_steps": 2, "eval_steps": 2, "eval_strategy": "steps"}
    fields = {"per_device_train_batch_size": 4, "metric_for_best_model": "loss", **cadence, **fields}
    torch.manual_seed(0)
    trainer = new_trainer(folder, library=library, rows=24, **fields)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    trainer.save_state()


# Reading


def test_a_run_of_either_trainer(tmp_path):
    """Curves, the best step and the step it was resumed from are read off a run of ours and of transformers'."""
    transformers = pytest.importorskip("transformers")
    libraries = {"ours": hf_compat, "upstream": transformers}
    for name, library in libraries.items():
        train_and_evaluate(library, tmp_path / name, max_steps=6)
        train_and_evaluate(library, tmp_path / name, max_steps=6, resume=tmp_path / name / "checkpoint-4")
    ours, upstream = read_histories([tmp_path / "ours", tmp_path / "upstream"])
    assert ours.series == upstream.series
    assert set(ours.series) == {"loss", "grad_norm", "learning_rate", "eval_loss"}
    assert ours.series["eval_loss"].steps == (2, 4, 6)
    assert ours.best == upstream.best
    assert ours.best.step == 6
    assert (ours.best.metric, ours.best.value) == ("eval_loss", ours.series["eval_loss"].values[-1])
    assert ours.resumed == upstream.resumed == (4,)
    whole = read_history(tmp_path / "ours" / "checkpoint-4")
    assert whole.name == "ours/checkpoint-4"
    assert whole.resumed == ()


@pytest.mark.parametrize(
    ("values", "every", "summary", "expected"),
    [
        pytest.param((4.0, 3.0, 2.0, 1.0), 1, 10 / 4, (), id="never"),
        pytest.param((4.0, 3.0, 2.0, 1.0), 1, 3 / 4, (2,), id="at a log"),
        pytest.param((4.0, 3.0, 2.0, 1.0), 10, (1.0 * 10 + 2.0 * 5) / 40, (25,), id="between logs"),
        pytest.param((4.0, 3.0, 2.0, 1.0), 1, 3 / 2, (2,), id="as since transformers 5"),
        pytest.param((4.0, math.nan, 2.0, 1.0), 1, 10 / 4, (), id="unknown for NaN"),
    ],
)
def test_where_it_was_resumed(tmp_path, values, every, summary, expected):
    """The last losses that make up the run's `train_loss` are those since it was resumed."""
    logs = losses(*values, every=every)
    logs.append({"train_loss": summary, "train_runtime": 1.0, "step": logs[-1]["step"]})
    assert read_history(write_state(tmp_path / "run", logs)).resumed == expected


def test_an_end_with_further_logs_was_resumed_from(tmp_path):
    """Logs after a run's last log are those of a run that was resumed there."""
    end = {"train_loss": 2.5, "train_runtime": 1.0, "step": 2}
    logs = [*losses(3.0, 2.0), end, {"loss": 1.0, "step": 3}]
    assert read_history(write_state(tmp_path / "run", logs)).resumed == (2,)


def test_the_newest_state_of_a_folder(tmp_path):
    """Of a run's own state and that of its newest checkpoint, the one with more update steps is read."""
    run = write_state(tmp_path / "run", losses(3.0, 2.0))
    write_state(run / "checkpoint-2", losses(3.0, 2.0))
    assert read_history(run).file == run / "trainer_state.json"
    write_state(run / "checkpoint-10", losses(*range(10, 0, -1)))
    found = read_history(run)
    assert (found.file, found.last_step) == (run / "checkpoint-10" / "trainer_state.json", 10)
    assert found.name == "run/checkpoint-10"


def test_names_tell_runs_apart(tmp_path):
    """Runs of one name have their parents' names too, the same run twice a number."""
    runs = [write_state(tmp_path / name / "out", losses(1.0)) for name in ("a", "b")]
    assert [item.name for item in read_histories(runs)] == ["a/out", "b/out"]
    assert [item.name for item in read_histories([runs[0], runs[0]])] == ["out (1)", "out (2)"]


def test_speeds_and_summaries_are_no_curves(tmp_path):
    """Times, memory and what is of the whole run is left out; metrics of any name stay."""
    log = {"eval_loss": 1.0, "eval_runtime": 2.0, "eval_samples_per_second": 3.0, "eval_mem_cpu_peaked_delta": 4}
    summary = {"train_loss": 1.0, "train_runtime": 2.0, "total_flos": 3.0}
    logs = [{**log, "eval_f1": 0.5, "epoch": 1.0, "step": 1}, {**summary, "reward": 7, "step": 1}]
    assert set(read_history(write_state(tmp_path, logs)).series) == {"eval_loss", "eval_f1", "reward"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "has no `trainer_state.json`", id="none"),
        pytest.param('{"log_hist', "cannot be read", id="broken"),
        pytest.param("[1]", "not a JSON object", id="a list"),
        pytest.param("{}", "has no `log_history` list", id="another file"),
        pytest.param('{"log_history": [3]}', "has no `log_history` list", id="logs of numbers"),
        pytest.param('{"log_history": []}', "has no logs to draw", id="empty"),
        pytest.param('{"log_history": [{"epoch": 1.0, "step": 1}]}', "has no logs to draw", id="nothing measured"),
    ],
)
def test_bad_input_exits_with_2(tmp_path, capsys, content, message, matplotlib):
    """What cannot be drawn is an error that names the file, and nothing is written."""
    if content is not None:
        (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plot", str(tmp_path), "-o", str(tmp_path / "out.png")])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert str(tmp_path) in told
    assert not (tmp_path / "out.png").exists()
    with pytest.raises(CheckpointError, match="does not exist"):
        read_history(tmp_path / "nowhere")


# Drawing


def test_panels():
    """Losses of all data sets share a panel, as do a metric in training and in evaluation; rates and norms follow."""
    names = ["loss", "grad_norm", "learning_rate", "reward", "accuracy", "eval_loss", "eval_a_loss", "eval_accuracy"]
    assert [(panel.title, panel.names) for panel in panels_of(names)] == [
        ("Loss", ("loss", "eval_loss", "eval_a_loss")),
        ("accuracy", ("accuracy", "eval_accuracy")),
        ("Learning rate", ("learning_rate",)),
        ("Gradient norm", ("grad_norm",)),
        ("reward", ("reward",)),
    ]


def test_smoothing():
    """The average begins at the first value, passes over NaN, and a few points are not smoothed."""
    assert smoothed([4.0, 1.0, 1.0], 0.5) == [4.0, 2.0, 10 / 7]
    values = smoothed([math.nan, 4.0, math.nan, 1.0], 0.5)
    assert [value for value in values if not math.isnan(value)] == [4.0, 2.0]
    assert smoothed([1.0, 3.0], 0.0) == [1.0, 3.0]
    assert usual_weight(25) == 0
    assert 0.9 < usual_weight(1000) < 1


def a_run(folder, shift=0.0):
    logs = [{"loss": 3 - 0.01 * i + shift, "grad_norm": 1.0, "learning_rate": 1e-5, "step": i} for i in range(1, 61)]
    logs += [{"eval_loss": 3 - 0.01 * i, "eval_" + "long_" * 30: i / 60, "step": i} for i in (20, 40, 60)]
    logs.append({"train_loss": sum(log["loss"] for log in logs[30:60]) / 60, "train_runtime": 1.0, "step": 60})
    return write_state(folder, logs, best_metric=2.4, best_global_step=60)


def test_png(tmp_path, capsys, matplotlib):
    """One run makes a PNG, which the tool replaces and says so; logs that are not finite and a single one do too."""
    target = tmp_path / "out.png"
    assert cli.main(["plot", str(a_run(tmp_path / "run")), "-o", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert f"Wrote `{target}`" in capsys.readouterr().out
    for number, logs in enumerate((losses(math.nan, math.inf), losses(1.0))):
        assert cli.main(["plot", str(write_state(tmp_path / f"{number}", logs)), "-o", str(target)]) == 0
    assert f"Replaced `{target}`" in capsys.readouterr().out


def test_svg_of_several_runs(tmp_path, matplotlib):
    """Each run has a name, a dash pattern and a colour of its own; names are shown as they are, not as formulas."""
    runs = [a_run(tmp_path / name, index) for index, name in enumerate(("one", "_two$x$", "three"))]
    target = tmp_path / "out.svg"
    assert cli.main(["plot", *map(str, runs), "-o", str(target)]) == 0
    drawing = target.read_text()
    words = [element.text.strip() for element in ElementTree.fromstring(drawing).iter() if element.tag.endswith("text")]
    assert {"one", "_two$x$", "three", "Loss", "Learning rate", "Gradient norm", "update step"} <= set(words)
    assert any("resumed" in word and "smoothed" in word and "best" in word for word in words)
    lines = re.findall(r"stroke-dasharray: ([\d., ]+);[^\"]*stroke: (#\w+)", drawing)
    assert len({dashes for dashes, colour in lines if colour in ("#c55a11", "#1b7f4d")}) >= 2


class Outside(html.parser.HTMLParser):
    """Collects what a page would load from elsewhere, and the tags it leaves open."""

    def __init__(self):
        super().__init__()
        self.loaded, self.open, self.tables = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href") and tag != "a"]

    def handle_startendtag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if name == "src"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html(tmp_path, matplotlib):
    """The page has the picture and a table in it, is well formed, and loads nothing from elsewhere."""
    run = a_run(tmp_path / "<b>run")
    target = tmp_path / "out.html"
    assert cli.main(["plot", str(run), "-o", str(target)]) == 0
    text = target.read_text()
    parser = Outside()
    parser.feed(text)
    assert parser.open == []
    assert [value for value in parser.loaded if not value.startswith("#")] == []
    assert "&lt;b&gt;run" in text
    assert "<b>run" not in text
    assert "eval_loss 2.4 at step 60" in text
    assert '<td class="number">30</td>' in text


def test_what_is_not_its_own_is_not_replaced(tmp_path, capsys, matplotlib):
    """A file of someone else is replaced with --force alone; a wrong suffix, folder or weight is an error."""
    run = str(a_run(tmp_path / "run"))
    target = tmp_path / "out.png"
    target.write_bytes(b"a photograph")
    for words, message in (
        (["-o", str(target)], "was not written by hf-compat"),
        (["-o", str(tmp_path / "out.pdf")], "Use one of .png, .svg, .html"),
        (["-o", str(tmp_path / "no" / "out.png")], "does not exist"),
        (["--smooth", "1", "-o", str(tmp_path / "new.png")], "below 1"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["plot", run, *words])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
    assert target.read_bytes() == b"a photograph"
    assert cli.main(["plot", run, "--force", "-o", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    """Without matplotlib the error names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plot", str(a_run(tmp_path / "run")), "-o", str(tmp_path / "out.png")])
    assert stopped.value.code == 2
    assert 'pip install "hf-compat[plot]"' in capsys.readouterr().err
