"""``hf-compat`` without arguments: a page of what it can do."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hf_compat import cli

COMMAND = [sys.executable, "-m", "hf_compat"]


@contextmanager
def closed_pipe():
    """The end of a pipe to write to of which nobody has the other."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def buffered():
    """The environment without the variable that makes Python write everything at once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_the_page_names_each_command_once(capsys):
    """Each command has a line, with an example whose options are known; the exit status is 0."""
    assert cli.main([]) == 0
    page = capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    (known,) = re.findall(r"\{([\w,]+)\}", capsys.readouterr().out.split("commands:")[1])[:1]
    examples = [shlex.split(line.split("  ")[1]) for line in page.splitlines() if line.startswith("  hf-compat ")]
    assert sorted(words[1] for words in examples) == sorted(known.split(","))
    for words in examples:
        with pytest.raises(SystemExit) as ended:
            cli.main([words[1], "--help"])
        assert ended.value.code == 0
    assert max(len(line) for line in page.splitlines()) <= 120


@pytest.mark.parametrize("words", [[], ["--help"], ["explain", "--all"]], ids=["page", "help", "long output"])
def test_output_that_nobody_reads(words):
    """A reader that is gone, as ``head`` may be, ends a command without a word, with the status of SIGPIPE."""
    with closed_pipe() as writer:
        done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, env=buffered(), check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_remarks_that_nobody_reads(tmp_path):
    """So does one of whose standard error the reader is gone."""
    script = tmp_path / "train.py"
    script.touch()
    with closed_pipe() as writer:
        done = subprocess.run(
            [*COMMAND, "explain", str(script)], stdout=subprocess.DEVNULL, stderr=writer, env=buffered(), check=False
        )
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("verfy train.py", "verify"),
        ("check out", "checkpoints"),
        ("train.py --output_dir out", "hf-compat run train.py"),
        ("verify --stps 5 train.py", "--steps"),
        ("checkpoints out --verfy", "--verify"),
        ("explain --jsn=1 train.py", "--json"),
        ("completion bsh", "bash"),
        ("nothing like it", None),
        ("env --zzz", None),
    ],
)
def test_a_misspelt_word(line, meant, capsys):
    """The error suggests the command, option or choice that was meant, if there is one that is close."""
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.findall(r"Did you mean `(.*)`\?$", told) == ([] if meant is None else [meant])
