"""``hf-compat verify`` runs one script under both Trainers, says what differs first, and leaves the user's folders."""

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_compat import Trainer, TrainerCallback, TrainingArguments, cli
from hf_compat.errors import ReportError
from hf_compat.tools.verify.command import split_words
from hf_compat.tools.verify.comparing import (
    Record,
    Weights,
    compare,
    read_record,
    relative_difference,
    tensor_difference,
)
from hf_compat.tools.verify.recorder import Recorder, callback_class
from hf_compat.tools.verify.redirecting import copy_working_directory, refuse_writes
from hf_compat.tools.verify.report import Report, as_json, as_page, as_table, summary
from tests.support import helpers
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import clean_environment

SCRIPT = SCRIPTS / "verified_script.py"
WORDS = ["--output_dir", "out", "--use_cpu", "--learning_rate", "1e-2", "--num_train_epochs", "20"]
WORDS += ["--per_device_train_batch_size", "8", "--logging_steps", "2", "--eval_strategy", "steps", "--eval_steps", "3"]


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


# A record


def recorded(kind, arguments, base, folder, steps=3):
    """Train with a Trainer of either library, recorded in this process."""
    (folder / "outputs").mkdir(parents=True)
    args = arguments(
        str(folder / "outputs" / "run"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="epoch",
        num_train_epochs=9,
    )
    torch.manual_seed(0)
    data = helpers.ListDataset(helpers.vector_rows(40))
    trainer = kind(helpers.PlainModel(), args, train_dataset=data, eval_dataset=data)
    recorder = Recorder(folder, steps)
    recorder.attach(trainer, callback_class(base))
    trainer.train()
    recorder.close(None)
    return read_record(folder)


def test_the_recorder_watches_either_trainer(tmp_path):
    """Both are stopped by control after three update steps, of a schedule for all, and tell the same of each."""
    transformers = pytest.importorskip("transformers")
    upstream = recorded(
        transformers.Trainer, transformers.TrainingArguments, transformers.TrainerCallback, tmp_path / "upstream"
    )
    ours = recorded(Trainer, TrainingArguments, TrainerCallback, tmp_path / "ours")
    assert (upstream.library, ours.library) == ("transformers", "hf_compat")
    assert upstream.steps == ours.steps == ((1, 1), (1, 2), (1, 3))
    assert set(ours.quantities) >= {"loss", "gradient norm", "learning rate"}
    rates = list(ours.quantities["learning rate"].values())
    assert rates == [pytest.approx(5e-5 * (1 - step / 45)) for step in range(3)]
    assert [step for _, step in ours.metrics["eval_loss"]] == [3]
    assert {step for _, step in ours.logs["loss"]} == {2, 3}
    found = compare(upstream, ours, 1e-5)
    assert found.is_identical, as_table(Report("script", 3, upstream, ours, found))
    assert len(found.weights.by_moment) == 4
    assert any("checkpoint-3/model.safetensors" in name for name in ours.files)
    assert ours.facts["precision"] == "fp32"


@dataclass
class SecretArguments(TrainingArguments):
    """A script's own arguments, with secrets among them."""

    wandb_key: str = "s3cr3t-Value.9"
    service: str = "https://me:s3cr3t-Value.9@host.org"


def test_a_record_has_no_secrets(tmp_path):
    """The arguments of a report are shown without tokens and keys, those of a script's own fields included."""
    ours = recorded(Trainer, partial(SecretArguments, hub_token="s3cr3t-Value.9"), TrainerCallback, tmp_path, steps=1)
    text = as_json(Report("script", 1, ours, ours, compare(ours, ours, 1e-5)))
    assert "s3cr3t" not in text + (tmp_path / "rank-0.jsonl").read_text()
    assert json.loads(text)["arguments"]["hf_compat"]["service"] == "https://***@host.org"


# Comparing


def a_record(folder, *, library="transformers", losses=(3.0, 2.0, 1.0), weight=0.0, since=2, **fields):
    """Return the record of three update steps; ``weight`` is what step ``since`` and later add to one weight."""
    folder.mkdir(exist_ok=True)
    weights = {}
    for step in range(4):
        tensors = {"body.0.weight": torch.ones(2, 2), "head.bias": torch.full((2,), float(step))}
        tensors["body.0.weight"][0, 0] += weight * (step >= since)
        file = folder / f"{library}-{step}.safetensors"
        save_file(tensors, file)
        digests = {name: str(tensor.tolist()) for name, tensor in tensors.items()}
        weights[(1, step), "step"] = Weights(digests, file)
    curve = {(1, step): value for step, value in enumerate(losses, 1)}
    rates = {(1, step): 1e-3 for step in range(1, 4)}
    facts = {"precision": "fp32", "environment": {"device": "cpu"}, "arguments": {"seed": 1}, "class": "T"}
    record = Record(
        library=library,
        facts=facts,
        steps=tuple(curve),
        quantities={"loss": curve, "learning rate": rates},
        logs={"loss": curve, "eval_loss": {(1, 3): 1.0}},
        metrics={"eval_loss": {(1, 3): 1.0}, "epoch": {(1, 3): 1.0}},
        weights=weights,
        events=(("on_train_begin", 0), ("on_step_end", 1)),
        files=("run/checkpoint-3/model.safetensors",),
        seconds=1.0,
        memory={"cpu": 10**9},
    )
    return replace(record, **fields)


def row(found, name):
    return next(item for item in found.rows if item.name == name)


def test_equal_records(tmp_path):
    """Equal records are equal to the last bit, whatever time and memory they needed."""
    ours = a_record(tmp_path, library="hf_compat", seconds=9.0, memory={"cpu": 1})
    found = compare(a_record(tmp_path), ours, 1e-5)
    assert found.is_identical
    assert [item.name for item in found.rows][:5] == [
        "loss",
        "learning rate",
        "logged loss",
        "metric eval_loss",
        "weights",
    ]
    assert summary(Report("s.py", 3, ours, ours, found)) == "Equal to the last bit in 3 update steps."


def test_within_the_tolerance(tmp_path):
    """A difference below the tolerance is equal, and its size is told."""
    ours = a_record(tmp_path, library="hf_compat", losses=(3.0, 2.0 + 2e-6, 1.0))
    found = compare(a_record(tmp_path), ours, 1e-5)
    assert found.is_equal
    assert not found.is_identical
    loss = row(found, "loss")
    assert (loss.verdict, loss.first) == ("within tolerance", (1, 2))
    assert loss.difference == pytest.approx(1e-6, rel=1e-3)
    assert "within the tolerance of 1e-05 (fp32)" in summary(Report("s.py", 3, ours, ours, found))
    assert not compare(a_record(tmp_path), ours, 1e-7).is_equal


def test_the_first_difference(tmp_path):
    """The step, the quantity and the module that differ first are told."""
    ours = a_record(tmp_path, library="hf_compat", losses=(3.0, 2.0, 1.5), weight=0.5)
    found = compare(a_record(tmp_path), ours, 1e-5)
    assert not found.is_equal
    assert found.first is not None
    assert (found.first.name, found.first.first) == ("weights", (1, 2))
    assert (found.weights.module, found.weights.differing) == ("body.0", ("body.0.weight",))
    assert found.weights.absolute == 0.5
    assert found.weights.largest == pytest.approx(0.5 / 1.5)
    assert row(found, "loss").first == (1, 3)
    assert (row(found, "loss").upstream, row(found, "loss").ours) == ("1", "1.5")
    told = summary(Report("s.py", 3, ours, ours, found))
    assert "weights, first at step 2" in told
    assert "module `body.0`, after step 2" in told


def test_weights_that_differ_before_training(tmp_path):
    """A model that was built without a seed is told as that, with the remedy, whose call is code on the page."""
    ours = a_record(tmp_path, library="hf_compat", weight=0.5, since=0)
    report = Report("s.py", 3, ours, ours, compare(a_record(tmp_path), ours, 1e-5))
    told = summary(report)
    assert "<code>set_seed(42)</code> before it builds the model" in as_page(report, "<svg></svg>")
    assert "The weights of module `body.0` differ before the first step" in told
    assert "`set_seed(42)` before it builds the model" in told


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        pytest.param({"events": (("on_train_begin", 0),)}, "events", id="a missing event"),
        pytest.param({"files": ()}, "files", id="a missing file"),
        pytest.param({"metrics": {}, "logs": {}}, "metric eval_loss", id="a missing metric"),
        pytest.param({"weights": {}}, "weights", id="no weights"),
        pytest.param({"quantities": {"loss": {(1, 1): 3.0}}}, "loss", id="fewer steps"),
    ],
)
def test_what_only_one_run_has(tmp_path, fields, name):
    """What one run has and the other has not is a difference."""
    found = compare(a_record(tmp_path), replace(a_record(tmp_path, library="hf_compat"), **fields), 1e-5)
    assert row(found, name).verdict == "different"


def test_files_of_ours(tmp_path):
    """The two files that our checkpoints have besides are no difference, and named."""
    files = ("run/checkpoint-3/model.safetensors", "run/checkpoint-3/lightning.json", "run/checkpoint-3/lightning.pt")
    found = row(compare(a_record(tmp_path), a_record(tmp_path, files=files), 1e-5), "files")
    assert found.verdict == "equal"
    assert "lightning.json, lightning.pt" in found.note


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1.0, 1.0, 0.0),
        (2.0, 1.0, 0.5),
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, 1.0, math.inf),
        (None, 1.0, math.inf),
        (0.0, 1e-10, 1e-2),
    ],
)
def test_relative_difference(first, second, expected):
    """NaN equals NaN; a number equals nothing that is missing; numbers near 0 are compared as if they were larger."""
    assert relative_difference(first, second) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param([1.0, 4.0], [1.0, 3.0], (0.25, 1.0), id="finite"),
        pytest.param([math.nan, math.inf, 1.0], [math.nan, math.inf, 1.0], (0.0, 0.0), id="the same"),
        pytest.param([math.inf, 2.0], [math.inf, 1.0], (0.5, 1.0), id="infinite in both"),
        pytest.param([math.nan, 1.0], [0.0, 1.0], (math.inf, math.inf), id="NaN in the first"),
        pytest.param([0.0, 1.0], [math.nan, 1.0], (math.inf, math.inf), id="NaN in the second"),
        pytest.param([math.inf, 1.0], [0.0, 1.0], (math.inf, math.inf), id="infinite in the first"),
        pytest.param([math.inf], [-math.inf], (math.inf, math.inf), id="infinite, with another sign"),
        pytest.param([1.0], [1.0, 1.0], (math.inf, math.inf), id="other shapes"),
    ],
)
def test_difference_of_weights(first, second, expected):
    """Weights that have diverged in one run alone are within no tolerance."""
    assert tensor_difference(*map(torch.tensor, (first, second))) == expected


# The report


def a_report(folder):
    upstream, ours = a_record(folder), a_record(folder, library="hf_compat", losses=(3.0, math.nan, 1.5), weight=0.5)
    noise = compare(upstream, upstream, 1e-5)
    return Report("train.py --note '<b>'", 3, upstream, ours, compare(upstream, ours, 1e-5), noise)


def test_table_and_json(tmp_path):
    """The table has a line for each quantity; the JSON has the same, without numbers that JSON has no form for."""
    report = a_report(tmp_path)
    lines = as_table(report).splitlines()
    assert lines[0].split()[:3] == ["quantity", "transformers", "hf_compat"]
    assert "noise" in lines[0]
    assert re.search(r"^loss +2 +nan +only in one +0 +1\.00e-05 +at step 2 +different$", "\n".join(lines), re.M)
    assert lines[-1] == "Noise: two runs with transformers' Trainer differ not at all from each other."
    content = json.loads(as_json(report), parse_constant=pytest.fail)
    assert (content["equal"], content["identical"], content["tolerance"]) == (False, False, 1e-5)
    assert content["weights"]["module"] == "body.0"
    assert content["curves"]["hf_compat"]["loss"][1] == {"train": 1, "step": 2, "value": "nan"}


def test_page(tmp_path, matplotlib):
    """The page has result, curves, table, environment and arguments, escaped, and loads nothing from elsewhere."""
    from hf_compat.tools.plot.drawing import as_svg
    from hf_compat.tools.verify.report import draw_comparison

    report = a_report(tmp_path)
    svg = as_svg(draw_comparison(report))
    text = as_page(report, svg)
    assert re.findall(r"<h2>(\w+)</h2>", text) == ["Differences", "Environment", "Arguments"]
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert text.count('<tr class="differs">') == 3
    assert "module `body.0`" in text
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", text.replace("xmlns:xlink", ""))
    for word in ("transformers", "hf_compat", "Relative difference", "tolerance", "Loss"):
        assert word in svg


def test_the_page_has_the_result_once(tmp_path, matplotlib):
    """It is in its text; the picture, which may be sent alone, has it in itself, the curves of the page have not."""
    from hf_compat.tools.verify.command import _write
    from hf_compat.tools.verify.report import verdict

    report = a_report(tmp_path)
    _write(report, tmp_path)
    words = verdict(report)[:20]
    page = (tmp_path / "verify.html").read_text(encoding="utf-8")
    assert words in page[: page.index("<svg")]
    assert words not in page[page.index("<svg") : page.index("</svg>")].partition(">")[2]


def drawn(report):
    """Return the panels of a report's picture by their titles, as they are drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from hf_compat.tools.verify.report import draw_comparison

    figure = draw_comparison(report)
    FigureCanvasAgg(figure).draw()
    return figure, {axes.get_title(loc="left"): axes for axes in figure.axes}


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_the_axes_have_whole_steps(steps, tmp_path, matplotlib):
    """A metric of one update step is drawn there, with ticks at whole steps, the same in all panels."""
    curve = {(1, step): 1.0 / step for step in range(1, steps + 1)}
    fields = {"quantities": {"loss": curve}, "metrics": {"eval_loss": {(1, steps): 1.0}}, "steps": tuple(curve)}
    theirs, ours = (replace(a_record(tmp_path), weights={}, **fields) for _ in range(2))
    _, panels = drawn(Report("s.py", steps, theirs, ours, compare(theirs, ours, 1e-5)))
    assert [*panels] == ["Loss", "eval_loss", "Relative difference"]
    limits = {axes.get_xlim() for axes in panels.values()}
    assert len(limits) == 1
    for axes in panels.values():
        ticks = axes.get_xticks()
        assert [float(tick).is_integer() for tick in ticks] == [True] * len(ticks)
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"{tick:g}" for tick in ticks]
    assert [*panels["eval_loss"].lines[0].get_xdata()] == [steps]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        pytest.param({}, "Equal to the last bit in 3 update steps.", id="equal"),
        pytest.param(
            {"losses": (3.0, 2.0 + 2e-6, 1.0)},
            "Equal within the tolerance of 1e-05 (fp32) in 3 update steps; the largest difference is 1e-06, in loss.",
            id="within the tolerance",
        ),
        pytest.param(
            {"losses": (3.0, 2.0, 1.5)},
            "Differs by more than the tolerance of 1e-05 (fp32): loss, first at step 3.",
            id="different",
        ),
    ],
)
def test_the_verdict_is_on_top(fields, line, tmp_path, matplotlib):
    """The picture says in one line what it shows, also where it is seen alone."""
    theirs, ours = a_record(tmp_path), a_record(tmp_path, library="hf_compat", **fields)
    figure, _ = drawn(Report("s.py", 3, theirs, ours, compare(theirs, ours, 1e-5)))
    assert figure.get_suptitle() == line
    box = figure._suptitle.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_what_was_never_logged_has_no_panel(tmp_path, matplotlib):
    """Neither a panel nor a name in the legend; what one run alone has is drawn."""
    some, quantities = {(1, 1): 1.0}, {"loss": {(1, 1): 1.0}, "gradient norm": {}}
    missing = {"metrics": {"eval_f1": {(1, 1): math.nan}}}
    theirs = replace(a_record(tmp_path), quantities=quantities, **missing)
    ours = replace(theirs, quantities={**quantities, "learning rate": some})
    figure, panels = drawn(Report("s.py", 3, theirs, ours, compare(theirs, ours, 1e-5)))
    assert [*panels] == ["Loss", "Learning rate", "Relative difference"]
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["loss", "weights"]


# What is run, and where


@pytest.mark.parametrize(
    ("words", "own", "options"),
    [
        (["--a", "1", "--steps", "5", "--noise"], ["--a", "1"], ["--steps", "5", "--noise"]),
        (["--steps", "5", "--a", "1"], ["--steps", "5", "--a", "1"], []),
        (["--", "--steps", "5"], ["--steps", "5"], []),
        (["--a", "--processes=2"], ["--a"], ["--processes=2"]),
        ([], [], []),
    ],
)
def test_options_may_stand_behind_the_script(words, own, options):
    """Options at the end of the line are those of verify, unless the script's begin with ``--``."""
    assert split_words(words) == (own, options)


def test_the_copy_of_the_working_directory(tmp_path):
    """It has files, folders and links, but no version control, no virtual environment, and not itself."""
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "rows.json").write_text("[]")
    (source / ".git").mkdir()
    (source / "env").mkdir()
    (source / "env" / "pyvenv.cfg").touch()
    (source / "link").symlink_to(tmp_path / "elsewhere")
    target = source / "runs" / "copy"
    assert copy_working_directory(source, target) == [str((tmp_path / "elsewhere").resolve())]
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*")) == [
        "data",
        "data/rows.json",
        "link",
    ]


def test_writes_are_refused(tmp_path):
    """Files in a protected folder can be read, and neither written, moved nor deleted."""
    (tmp_path / "file").write_text("kept")
    script = (
        "import os, shutil, pathlib, sys\n"
        "from hf_compat.tools.verify.redirecting import refuse_writes\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / 'free').mkdir()\n"
        "refuse_writes([os.path.realpath(here)], [str(here / 'free')])\n"
        "assert (here / 'file').read_text() == 'kept'\n"
        "(here / 'free' / 'new').write_text('x')\n"
        "(here / 'free' / 'sub').mkdir()\n"
        "(here / 'free' / 'sub' / 'file').write_text('x')\n"
        "os.chdir(here)\n"
        "shutil.rmtree(here / 'free' / 'sub')\n"
        "assert not (here / 'free' / 'sub').exists()\n"
        "os.makedirs(here, exist_ok=True)\n"
        "for act in (lambda: (here / 'file').write_text(''), lambda: (here / 'new').mkdir(), (here / 'file').unlink,\n"
        "            lambda: (here / 'file').rename(here / 'other'), lambda: os.open(here / 'o', os.O_CREAT),\n"
        "            lambda: os.remove('file', dir_fd=os.open(here, os.O_RDONLY)), lambda: shutil.rmtree(here)):\n"
        "    try:\n"
        "        act()\n"
        "        sys.exit('not refused')\n"
        "    except PermissionError as error:\n"
        "        assert 'tried to modify' in str(error)\n"
    )
    assert callable(refuse_writes)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "does not exist"),
        (["--steps", "0", str(SCRIPT)], "pass 1 or more"),
        (["--tolerance", "2", str(SCRIPT)], "from 0 to below 1"),
        (["--output", "no/folder", str(SCRIPT)], "the folder `no/folder` does not exist"),
    ],
)
def test_wrong_usage_exits_with_2(words, message, capsys, matplotlib):
    """What cannot be run is told before anything is."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["verify", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["transformers", "accelerate", "matplotlib"])
def test_a_missing_package_is_named_before_anything_is_run(package, monkeypatch, capsys):
    """The Trainer of transformers needs accelerate, and the picture matplotlib: one extra brings all."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["verify", str(SCRIPT)])
    assert stopped.value.code == 2
    assert f'needs the package `{package}`. Run: pip install "hf-compat[verify]"' in capsys.readouterr().err


def test_an_error_names_what_is_too_large(tmp_path, monkeypatch):
    """A working directory above the limit is refused, with the option that does without a copy."""
    monkeypatch.setattr("hf_compat.tools.verify.redirecting._MOST_BYTES", 3)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("four")
    with pytest.raises(ReportError, match="--no-copy"):
        copy_working_directory(tmp_path / "source", tmp_path / "target")


# Whole


def verify(folder, *words, script=SCRIPT):
    """Run the command in a folder with the script, whose ``out`` has a file already."""
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "mine").write_text("mine")
    shutil.copy(script, folder / "train.py")
    before = contents(folder)
    command = [sys.executable, "-m", "hf_compat.cli", "verify", *words]
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    left = {name: text for name, text in contents(folder).items() if not name.startswith("verify.")}
    assert left == {name: text for name, text in before.items() if not name.startswith("verify.")}
    return done


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_script_is_equal(tmp_path, matplotlib):
    """A script is equal under both Trainers to the last bit, the user's folders are as before, three files are new."""
    done = verify(tmp_path, "train.py", *WORDS, "--write", "out/mine", "--steps", "6", "--noise")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Equal to the last bit in 6 update steps." in done.stdout
    assert "Tolerances by precision: fp64" in done.stdout
    assert "Wrote `verify.html`." in done.stdout
    content = json.loads((tmp_path / "verify.json").read_text())
    assert content["identical"]
    assert [item["verdict"] for item in content["noise"] if item["name"] == "weights"] == ["equal"]
    assert (tmp_path / "verify.png").read_bytes().startswith(b"\x89PNG")
    chromium = shutil.which("chromium")
    if chromium:
        shot = tmp_path / "verify.shot.png"
        page = (tmp_path / "verify.html").as_uri()
        dom = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'verify.c'}"]
        shown = subprocess.run([*dom, "--dump-dom", page], capture_output=True, text=True, check=True).stdout
        assert "Equal to the last bit in 6 update steps." in shown
        assert shown.count("<svg") == 1
        subprocess.run([*dom, "--window-size=1100,2000", f"--screenshot={shot}", page], capture_output=True, check=True)
        assert shot.stat().st_size > 50_000


@pytest.mark.slow
def test_a_script_differs(tmp_path, matplotlib):
    """A weight that is changed under our Trainer alone is found at its step and in its module; the status is 1."""
    done = verify(tmp_path, "--steps", "4", "train.py", *WORDS, "--shift", "0.25")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "weights, first at step 2" in done.stdout
    assert "module `body.0`, after step 2" in done.stdout
    loss = next(item for item in json.loads((tmp_path / "verify.json").read_text())["rows"] if item["name"] == "loss")
    assert loss["first"] == {"train": 1, "step": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--fail", "true"], "this script fails", id="fails"),
        pytest.param(["--write", "HERE/out/mine"], "tried to modify", id="writes to the user's folder"),
        pytest.param(["--noise", "--fail", "true"], "`--noise` was passed to the script", id="an option between"),
    ],
)
def test_an_error_of_the_script(tmp_path, words, message, matplotlib):
    """A script that fails, or would write to the user's folders, is an error that shows its last lines; status 2."""
    given = [word.replace("HERE", str(tmp_path)) for word in words]
    done = verify(tmp_path, "train.py", *WORDS, *given, "--steps", "2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "failed with transformers' Trainer" in done.stderr
    assert not (tmp_path / "verify.json").exists()


def test_an_error_is_shown_without_secrets(tmp_path, matplotlib):
    """The lines that a script that fails has printed are shown without the secrets of its command line."""
    secret = "s3cr3t-Value.9"
    words = [*WORDS, "--hub_token", secret, "--fail", "true"]
    done = verify(tmp_path, "train.py", *words, "--steps", "1")
    assert "--hub_token" in done.stderr
    assert secret not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_with_our_trainer(tmp_path, matplotlib):
    """A script that imports hf_compat itself cannot be compared, and the error says why."""
    script = tmp_path / "ours.py"
    script.write_text(SCRIPT.read_text().replace("from transformers import", "from hf_compat import"))
    (tmp_path / "w").mkdir()
    done = verify(tmp_path / "w", "train.py", *WORDS, "--steps", "2", script=script)
    assert done.returncode == 2
    assert "imports `Trainer` from transformers" in done.stderr


@pytest.mark.slow
def test_a_script_that_writes_into_its_output_dir(tmp_path, matplotlib):
    """By a path of its own, not that of the arguments: the file is one of the run's."""
    words = [*WORDS, "--output_dir", "new/out", "--write", "new/out/notes.txt", "--steps", "2"]
    done = verify(tmp_path, "train.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_two_processes(tmp_path, matplotlib):
    """Two processes are compared too, the losses of each."""
    done = verify(tmp_path, "train.py", *WORDS, "--steps", "3", "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss of rank 1" in done.stdout
    assert Path(tmp_path / "verify.html").exists()
