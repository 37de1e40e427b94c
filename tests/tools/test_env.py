"""``hf-compat env``: versions, devices and launcher variables, without secrets."""

import json
from importlib.metadata import version

import pytest

import hf_compat
from hf_compat.cli import main


@pytest.fixture
def described(capsys):
    """Return what the command prints as JSON."""

    def run():
        assert main(["env", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_versions_and_devices(described):
    """The report names this version, torch's and that of transformers whose numbers a run has; the CPU is a device."""
    found = described()
    assert found["hf_compat"] == hf_compat.__version__
    assert found["packages"]["torch"] == version("torch")
    assert found["semantics"] == f"transformers {version('transformers')}"
    assert found["devices"][0].startswith("CPU, ")


def test_launcher_variables_without_secrets(described, monkeypatch):
    """A launcher's variables are shown, without paths; none that may be a secret or a user, nor of other programs."""
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JWT_TOKEN", "secret")
    monkeypatch.setenv("ACCELERATE_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SLURM_JWT", "secret")
    monkeypatch.setenv("SLURM_JOB_USER", "secret")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/home/secret")
    monkeypatch.setenv("NCCL_CONF_FILE", "a=~/secret,b=/home/secret/x")
    monkeypatch.setenv("MASTER_ADDR", "https://me:secret@host:1")
    monkeypatch.setenv("EDITOR", "vi")
    found = described()
    assert found["variables"]["SLURM_NTASKS"] == "4"
    assert "secret" not in json.dumps(found)
    assert found["variables"]["SLURM_SUBMIT_DIR"] == "<path>"
    assert found["variables"]["NCCL_CONF_FILE"] == "a=<path>,b=<path>"
    assert found["variables"]["MASTER_ADDR"] == "https://***@host:1"
    assert "EDITOR" not in found["variables"]


def test_a_bad_release_is_part_of_the_report(described, monkeypatch):
    """A value of HF_COMPAT_SEMANTICS that is no release is reported, and the command goes on."""
    monkeypatch.setenv("HF_COMPAT_SEMANTICS", "newest")
    found = described()
    assert "`HF_COMPAT_SEMANTICS='newest'`" in found["semantics"]
    assert found["variables"]["HF_COMPAT_SEMANTICS"] == "newest"


def test_lines_of_text(capsys):
    """Without --json the report is lines of text that name each package, whether installed or not."""
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"torch: {version('torch')}" in lines
    assert any(line.startswith("trl: ") for line in lines)
