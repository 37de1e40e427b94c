"""``hf-compat checkpoints`` lists what lies in a folder and finds what is damaged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

import hf_compat
from hf_compat import Trainer, TrainingArguments, cli, get_last_checkpoint
from hf_compat.checkpoint.completeness import write_marker
from hf_compat.tools.checkpoints import describe_checkpoints
from tests.scripts.crash_script import Model, Rows
from tests.support.checkpoints import cut, small_checkpoint
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def output_of_a_run(tmp_path_factory):
    """The output folder of a run with checkpoints of update steps 2, 4 and 6, an epoch each; 4 or 6 is the best."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    torch.manual_seed(0)
    args = TrainingArguments(
        str(folder),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        num_train_epochs=3,
        learning_rate=0.05,
        per_device_train_batch_size=4,
        eval_strategy="epoch",
        save_strategy="epoch",
        metric_for_best_model="loss",
    )
    trainer = Trainer(Model(8), args, train_dataset=Rows(8, 1), eval_dataset=Rows(4, 2))
    trainer.train()
    return folder


@pytest.fixture
def copy_of_output(output_of_a_run, tmp_path):
    """A copy of it, elsewhere."""
    return Path(shutil.copytree(output_of_a_run, tmp_path / "run"))


def state_of(folder):
    return json.loads((folder / "trainer_state.json").read_text())


def change_state(folder, **values):
    (folder / "trainer_state.json").write_text(json.dumps({**state_of(folder), **values}))


def listed(capsys, *arguments):
    """The lines that the command prints, and its status."""
    status = cli.main(["checkpoints", *map(str, arguments)])
    return capsys.readouterr().out.splitlines(), status


def test_listing_of_a_run(copy_of_output, capsys):
    """One aligned line a checkpoint: update step, epoch, best metric so far, size, marks, state."""
    for step in (2, 4, 6):
        change_state(
            copy_of_output / f"checkpoint-{step}",
            best_metric=12.5 / step,
            best_model_checkpoint="old/place/checkpoint-4",
        )
        write_marker(copy_of_output / f"checkpoint-{step}", step=step)
    sizes = [
        sum(p.stat().st_size for p in (copy_of_output / f"checkpoint-{step}").iterdir()) / 1e6 for step in (2, 4, 6)
    ]
    lines, status = listed(capsys, copy_of_output)
    assert lines == [
        "step  epoch   metric    MB  marks   state",
        f"   2   1.00     6.25  {sizes[0]:.2f}          complete",
        f"   4   2.00    3.125  {sizes[1]:.2f}  best    complete",
        f"   6   3.00  2.08333  {sizes[2]:.2f}  newest  complete",
    ]
    assert status == 0


def test_values_are_those_of_the_state(copy_of_output):
    """What a real run wrote is what is listed; the newest is the one that a resume takes."""
    found = describe_checkpoints(copy_of_output, verify=True)
    states = [state_of(item.path) for item in found]
    assert [item.step for item in found] == [state["global_step"] for state in states] == [2, 4, 6]
    assert [item.epoch for item in found] == [1.0, 2.0, 3.0]
    assert [item.metric for item in found] == [state["best_metric"] for state in states]
    assert [item.problems for item in found] == [(), (), ()]
    assert [str(item.path) for item in found if item.is_newest] == [get_last_checkpoint(copy_of_output)]
    assert [item.step for item in found if item.is_best] == [states[-1]["best_global_step"]]


@pytest.mark.parametrize(
    ("state", "metric"),
    [
        pytest.param({"best_metric": 0.25, "log_history": [{"eval_loss": 1.0}]}, 0.25, id="best metric"),
        pytest.param(
            {"best_metric": None, "log_history": [{"eval_loss": 2.0}, {"eval_loss": 1.0}, {"loss": 3.0}]},
            1.0,
            id="last",
        ),
        pytest.param({"best_metric": None, "log_history": [{"loss": 3.0}]}, None, id="never evaluated"),
        pytest.param({"best_metric": "high", "log_history": [7, {"eval_loss": True}]}, None, id="no numbers"),
        pytest.param({"log_history": {"eval_loss": 1.0}}, None, id="no list"),
    ],
)
def test_metric(tmp_path, state, metric):
    """The best metric, else the last loss of an evaluation, else none; nonsense in the file does not matter."""
    folder = small_checkpoint(tmp_path / "checkpoint-3")
    (folder / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": 5, **state}))
    (found,) = describe_checkpoints(tmp_path)
    assert (found.metric, found.epoch, found.is_best, found.is_newest) == (metric, None, False, True)


@pytest.mark.parametrize("path", ["out\\checkpoint-4", "/gone/out/checkpoint-4", "checkpoint-4"])
def test_best_is_found_by_name(copy_of_output, path):
    """A run that moved, from another system even, still shows its best checkpoint."""
    change_state(copy_of_output / "checkpoint-6", best_model_checkpoint=path)
    assert [item.step for item in describe_checkpoints(copy_of_output) if item.is_best] == [4]


def flip(path):
    """Change one byte of the first tensor in a file of torch's; its size stays."""
    with zipfile.ZipFile(path) as archive:
        content = next(archive.read(name) for name in archive.namelist() if name.endswith("/data/0"))
    changed = bytes([content[0] ^ 1]) + content[1:]
    path.write_bytes(path.read_bytes().replace(content, changed, 1))


def spoil_header(path):
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


DAMAGES = {
    "cut weights": ("model.safetensors", cut, r"`model.safetensors` has [0-9]+ bytes, expected [0-9]+\.", True),
    "missing weights": ("model.safetensors", Path.unlink, r"`model.safetensors` is missing\.", True),
    "spoiled header": ("model.safetensors", spoil_header, "`model.safetensors` is damaged: .*header", False),
    "cut optimizer": ("optimizer.pt", cut, "`optimizer.pt` has", True),
    "flipped bit": (
        "optimizer.pt",
        flip,
        "`optimizer.pt` is damaged: the checksum of `.*/data/0` in it does not match.",
        False,
    ),
    "missing state": ("trainer_state.json", Path.unlink, r"  `trainer_state.json` is missing\.$", True),
    "cut state": ("trainer_state.json", cut, "`.*trainer_state.json` cannot be read", True),
    "marker": (
        "lightning.json",
        lambda path: path.write_text("[]"),
        "`.*lightning.json` is damaged: it contains a list",
        True,
    ),
    "other JSON": ("config.json", lambda path: path.write_text("{"), "`config.json` is damaged: Expecting", False),
    "deep JSON": ("config.json", lambda path: path.write_text("[" * 200_000), "`config.json` is damaged: ", False),
}


@pytest.mark.parametrize(("name", "harm", "message", "stops_a_resume"), DAMAGES.values(), ids=DAMAGES)
def test_damage(copy_of_output, capsys, name, harm, message, stops_a_resume):
    """``--verify`` names a damaged file and exits with 1; what a resume would pass over is listed without it too."""
    harm(copy_of_output / "checkpoint-6" / name)
    lines, status = listed(capsys, copy_of_output, "--verify")
    assert status == 1
    assert [line.split()[0] for line in lines if line.endswith("complete")] == ["2", "4"]
    assert any(re.search(message, line) for line in lines[3:])
    lines, status = listed(capsys, copy_of_output)
    assert status == 0
    assert bool(re.search(message, lines[3])) == stops_a_resume
    (newest,) = (item for item in describe_checkpoints(copy_of_output) if item.is_newest)
    assert newest.step == (4 if stops_a_resume else 6)


def test_every_problem_is_named_once(copy_of_output, capsys):
    """Further problems of a checkpoint stand below the first; a file of its author's is not one."""
    for name in ("optimizer.pt", "scheduler.pt"):
        (copy_of_output / "checkpoint-4" / name).unlink()
    (copy_of_output / "checkpoint-4" / "notes.txt").write_text("mine")
    lines, _ = listed(capsys, copy_of_output, "--verify")
    assert lines[2].endswith("  `optimizer.pt` is missing.")
    assert lines[3].strip() == "`scheduler.pt` is missing."
    assert lines[3].index("`") == lines[2].index("`") == lines[0].index("state")
    assert len(lines) == 5


def test_checkpoint_of_transformers(tmp_path, capsys):
    """A folder without hf_compat's marker is judged by its headers."""
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    assert listed(capsys, tmp_path, "--verify")[1] == 0
    cut(folder / "scheduler.pt")
    lines, status = listed(capsys, tmp_path, "--verify")
    assert status == 1
    assert lines[1].endswith("`scheduler.pt` is damaged: it is truncated.")


def test_names_of_files_are_not_obeyed(tmp_path, capsys):
    """Nothing that a checkpoint says reaches the terminal as a control sequence or out of its line."""
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    marker = {"format": 1, "step": 1, "run_id": None, "files": {"\x1b[2J\nmodel.bin": 3}}
    (folder / "lightning.json").write_text(json.dumps(marker))
    lines, _ = listed(capsys, tmp_path)
    assert len(lines) == 2
    assert lines[1].endswith("`\ufffd[2J\ufffdmodel.bin` is missing.")


def test_one_checkpoint(copy_of_output, capsys):
    """The folder of a checkpoint itself is listed alone."""
    lines, status = listed(capsys, copy_of_output / "checkpoint-4", "--verify")
    assert (len(lines), lines[1].split()[0], status) == (3, "4", 0)


def test_verified_files_are_counted(copy_of_output, capsys):
    """If every file is as it was saved, the last line says of how many; not if a checkpoint cannot be verified."""
    saved = sum(path.is_file() for path in copy_of_output.rglob("checkpoint-*/**/*"))
    lines, status = listed(capsys, copy_of_output, "--verify")
    assert (len(lines), lines[-1], status) == (5, f"verified: {saved} files as saved", 0)
    assert len(listed(capsys, copy_of_output)[0]) == 4
    flip(copy_of_output / "checkpoint-4" / "optimizer.pt")
    assert not any(line.startswith("verified") for line in listed(capsys, copy_of_output, "--verify")[0])


def test_json(copy_of_output, capsys):
    """``--json`` prints all fields, sizes in bytes; NaN, which JSON does not know, is null."""
    change_state(copy_of_output / "checkpoint-2", best_metric=float("nan"))
    (copy_of_output / "checkpoint-4" / "optimizer.pt").unlink()
    assert cli.main(["checkpoints", str(copy_of_output), "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [item["step"] for item in content] == [2, 4, 6]
    assert content[0] == {
        "step": 2,
        "path": str(copy_of_output / "checkpoint-2"),
        "epoch": 1.0,
        "metric": None,
        "size": sum(path.stat().st_size for path in (copy_of_output / "checkpoint-2").iterdir()),
        "problems": [],
        "is_best": False,
        "is_newest": False,
        "note": "",
    }
    assert content[1]["problems"] == ["`optimizer.pt` is missing."]
    assert [item["is_newest"] for item in content] == [False, False, True]


def test_nothing_there(tmp_path, capsys):
    """A folder without checkpoints is no error; no folder is one, with status 2."""
    assert listed(capsys, tmp_path, "--verify") == ([f"No checkpoints in `{tmp_path}`."], 0)
    assert listed(capsys, tmp_path, "--json") == (["[]"], 0)
    with pytest.raises(SystemExit) as stop:
        cli.main(["checkpoints", str(tmp_path / "nowhere")])
    assert stop.value.code == 2
    advice = "pass the output folder of a run or one of its checkpoints"
    assert capsys.readouterr().err == f"hf-compat: `{tmp_path / 'nowhere'}` does not exist; {advice}.\n"
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        cli.main(["checkpoints", str(tmp_path / "file")])
    assert f"`{tmp_path / 'file'}` is no folder; {advice}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["checkpoints"], ["nonsense"]], ids=["no folder", "unknown"])
def test_wrong_usage(arguments, capsys):
    """Wrong usage ends with status 2 and says how to use the command."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("usage: hf-compat")


def test_command(tmp_path):
    """The command is installed under its name, and its exit status is that of ``main``."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"hf-compat": "hf_compat.cli:main"}
    command = [sys.executable, "-m", "hf_compat.cli"]
    done = subprocess.run([*command, "--version"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"hf-compat {hf_compat.__version__}\n"
    cut(small_checkpoint(tmp_path / "checkpoint-1") / "model.safetensors")
    done = subprocess.run(
        [*command, "checkpoints", str(tmp_path), "--verify"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 1
