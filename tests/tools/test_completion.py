"""``hf-compat completion``: shells complete its words."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from hf_compat import cli

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hf_compat
printf '%s\\n' "${COMPREPLY[@]}"
complete -p hf-compat
"""
NEEDS_BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
NEEDS_ZSH = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")


@pytest.fixture
def script(tmp_path, capsys):
    """A function that writes the script for a shell, and returns where."""

    def write(shell):
        assert cli.main(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return write


@NEEDS_BASH
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["ver"], ["verify"], id="command"),
        pytest.param(["co"], ["consolidate", "convert", "completion"], id="several commands"),
        pytest.param(["--v"], ["--version"], id="option of the command itself"),
        pytest.param(["checkpoints", "out", "--j"], ["--json"], id="option"),
        pytest.param(["convert", "a", "b", "--groups", "d"], ["decay"], id="choice of an option"),
        pytest.param(["completion", ""], ["bash", "zsh"], id="choice of an argument"),
        pytest.param(["run", "--d"], ["--dry"], id="before the script"),
        pytest.param(["run", "t.py", "--dr"], [], id="a script's option is not the command's"),
        pytest.param(["run", "t.py", "--num_tr"], ["--num_train_epochs"], id="field behind a script"),
        pytest.param(["verify", "t.py", "--steps"], ["--steps"], id="option behind a script"),
        pytest.param(["plot", "some"], [], id="files are bash's to complete"),
    ],
)
def test_bash_completes(script, words, expected):
    """Bash gets commands, options, choices and, behind a script, fields; the rest it takes for files."""
    command = ["bash", "--norc", "-c", BASH, "bash", script("bash"), "hf-compat", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *found, told = done.stdout.splitlines()
    assert [word for word in found if word] == expected
    assert told == "complete -o default -F _hf_compat hf-compat"
    assert done.stderr == ""


@NEEDS_ZSH
def test_zsh_completes(script, tmp_path):
    """A zsh on a terminal completes a command, an option and a field at the tab key."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path,
        start_new_session=True,
    ) as shell:  # fmt: skip
        os.close(theirs)
        os.write(ours, f"source {script('zsh')}; echo lo'a'ded\n".encode())
        assert b"loaded" in _until(ours, b"loaded")
        typed = {b"ver": b"verify", b"convert a b --groups d": b"decay", b"run t.py --num_tr": b"--num_train_epochs"}
        for words, expected in typed.items():
            os.write(ours, b"hf-compat " + words + b"\t")
            assert expected in _until(ours, expected)
            os.write(ours, b"\x15")  # drops the line
        os.write(ours, b"exit\n")
        shell.wait(30)
        os.close(ours)


def _until(terminal, expected):
    """Return what the terminal shows until it shows ``expected``."""
    seen, end = b"", time.monotonic() + 30
    while expected not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    return seen
