"""`hf-compat run`: a program runs as under Python itself."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from hf_compat import cli
from tests.support import processes

pytest.importorskip("transformers")

OURS = ("-m", "hf_compat", "run")
PROGRAM = """
import json, multiprocessing, os, sys
from pathlib import Path

class Kept:
    pass

if __name__ == "__main__":
    import pickle
    main = sys.modules["__main__"]
    told = {
        "words": sys.argv,
        "file": __file__,
        "name": __name__,
        "package": __package__,
        "spec": getattr(__spec__, "name", None),
        "folder": sys.path[0],
        "names": sorted(vars(main)),
        "own": vars(main) is globals(),
        "pickled": type(pickle.loads(pickle.dumps(Kept()))) is Kept,
    }
    Path(os.environ["TOLD"]).write_text(json.dumps(told))
    sys.exit(7)
"""
FAILING = """
def inner():
    raise KeyError("mine")

inner()
"""
OWN_HOOK = """
import sys
sys.excepthook = lambda kind, error, traceback: print("hook", kind.__name__, traceback.tb_frame.f_code.co_name)
raise OSError("mine")
"""
WAITING = """
import atexit, sys, time
atexit.register(print, "left", flush=True)
print("waiting", flush=True)
time.sleep(60)
"""
CHILD = """
import subprocess, sys
code = "import sys; print(type(sys.meta_path[0]).__module__.split('.')[0])"
subprocess.run([sys.executable, "-c", code], check=True)
"""


def run_in(folder, *words, **variables):
    """Run Python with ``words`` in ``folder``; return its exit status, stdout and stderr without our line."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=processes.clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE,
    )
    lines = done.stderr.splitlines(keepends=True)
    return done.returncode, done.stdout, "".join(line for line in lines if not line.startswith("hf_compat "))


@pytest.mark.parametrize("given", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_a_program_sees_what_it_sees_under_python(given, tmp_path):
    """Arguments, `__main__`, its path and exit status are equal, and classes of `__main__` can be pickled."""
    (tmp_path / "program.py").write_text(PROGRAM)
    told = []
    for before in ((), OURS):
        status, _, errors = run_in(tmp_path, *before, *given, "-m", "--x=1", "a b", TOLD=str(tmp_path / "told.json"))
        assert status == 7, errors
        told.append(json.loads((tmp_path / "told.json").read_text()))
    assert told[0] == told[1]
    assert told[1]["pickled"]
    assert told[1]["own"]


@pytest.mark.parametrize("text", [FAILING, "x = = 1\n", "raise SystemExit('told')\n", OWN_HOOK])
def test_errors_are_shown_as_by_python(text, tmp_path):
    """Traceback, exit status and a hook of the program's own: no line of ours is among the frames."""
    (tmp_path / "program.py").write_text(text)
    assert run_in(tmp_path, *OURS, "program.py") == run_in(tmp_path, "program.py")


@pytest.fixture
def _interrupts_reach_children():
    """A shell starts what is in its background with SIGINT ignored, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts_reach_children")
def test_an_interrupt_ends_it_as_it_ends_python(tmp_path):
    """After Ctrl-C the process has run its exit functions, shows its own frames and has died of the signal."""
    (tmp_path / "program.py").write_text(WAITING)
    left = []
    for before in ((), OURS):
        command = [sys.executable, *before, "program.py"]
        process = processes.start(command, tmp_path)
        try:
            while process.stdout.readline() != "waiting\n":
                assert process.poll() is None
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=processes.PATIENCE)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        left.append((process.returncode, output))
    assert left[0] == left[1]
    assert left[1][0] == -signal.SIGINT


def test_a_module_whose_package_derives_from_the_trainer(tmp_path):
    """Finding a module imports its package: what that derives from the Trainer derives from ours already."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from transformers import Trainer\nclass Mine(Trainer): pass\n")
    (package / "train.py").write_text("from package import Mine\nprint(Mine.__base__.__module__)\n")
    status, output, errors = run_in(tmp_path, *OURS, "-m", "package.train")
    assert (status, output) == (0, "hf_compat.trainer.trainer\n"), errors


def test_what_cannot_be_run(tmp_path):
    """A missing script, module or command is an error of the command, status 2, that names it."""
    for words in (["none.py"], ["-m", "none.at_all"], ["--cli", "none-at-all"]):
        status, _, errors = run_in(tmp_path, *OURS, *words)
        assert (status, words[-1] in errors, "Traceback" in errors) == (2, True, False)


@pytest.mark.parametrize(("variables", "have"), [({}, True), ({"HF_COMPAT_INSTALL": "0"}, False)])
def test_children_have_it_too(variables, have, tmp_path):
    """A process that the program starts installs hf_compat, unless told not to, and runs another `sitecustomize`."""
    (tmp_path / "program.py").write_text(CHILD)
    others = tmp_path / "others"
    others.mkdir()
    (others / "sitecustomize.py").write_text("print('the other one')\n")
    path = os.pathsep.join([processes.clean_environment()["PYTHONPATH"], str(others)])
    # Unbuffered, as each of both processes prints at its start.
    status, output, errors = run_in(tmp_path, *OURS, "program.py", PYTHONPATH=path, PYTHONUNBUFFERED="1", **variables)
    assert (status, errors) == (0, "")
    assert output.splitlines()[:2] == ["the other one"] * 2  # of `run` itself, and of the child
    assert (output.split()[-1] == "hf_compat") == have


def test_one_line_for_all_ranks(tmp_path):
    """Only the first process of a launch says that hf_compat is in place."""
    (tmp_path / "program.py").write_text("")
    for rank, lines in (("0", 1), ("1", 0)):
        environment = processes.clean_environment(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank)
        command = [sys.executable, *OURS, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr.count("hf_compat ") == lines


def test_a_dry_run_runs_nothing(tmp_path, monkeypatch, capsys):
    """`--dry` tells what is replaced, what will not work and each argument's effect; no line of the script is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModel, Trainer, TrainingArguments\n"
        "open('ran', 'w')\n"
        "args = TrainingArguments('out', learning_rate=1e-4)\n"
    )
    assert cli.main(["run", "--dry", "train.py", "--max_steps", "7", "--hub_token", "mine"]) == 0
    told = capsys.readouterr().out
    assert "`train.py` was not run." in told
    assert "From hf_compat now: Trainer, TrainingArguments." in told
    assert "From transformers as before: AutoModel." in told
    for field, value in {"learning_rate": "0.0001", "max_steps": "7", "hub_token": "'[*]+'"}.items():
        assert re.search(rf"^{field} +{value} ", told, re.MULTILINE)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("source", "words", "status", "told"),
    [
        pytest.param("print(1)", ["-m", "train"], 0, "imports nothing Trainer-related", id="a module"),
        pytest.param(
            "from transformers import Trainer\nclass Own(Trainer):\n    def _run_epoch(self): ...",
            ["train.py"], 1, "Own._run_epoch` would never be called", id="an override that is never called",
        ),
        pytest.param(
            "from transformers import TrainingArguments\nTrainingArguments('out', tpu_num_cores=8)",
            ["train.py"], 1, "tpu_num_cores", id="a field that is refused",
        ),
        pytest.param(
            "from transformers import TrainingArguments\nTrainingArguments('out', learing_rate=1)",
            ["train.py"], 1, "error: `TrainingArguments` does not take it.", id="a field that there is not",
        ),
        pytest.param(
            "from transformers import TrainingArguments\nclass Own(TrainingArguments):\n    mine: int = 1\n"
            "Own('out', mine=1)",
            ["train.py"], 0, "Not a field of TrainingArguments.", id="a field of its own",
        ),
        pytest.param(
            "from trl import SFTTrainer",
            ["train.py"], 0, "`SFTTrainer` of trl gets hf_compat's Trainer too", id="a library",
        ),
    ],
)  # fmt: skip
def test_the_status_of_a_dry_run(tmp_path, monkeypatch, capsys, source, words, status, told):
    """A dry run has status 1 if something will not work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "train.py").write_text(source)
    assert cli.main(["run", "--dry", *words]) == status
    assert told in capsys.readouterr().out


def test_a_dry_run_of_a_command_is_refused(capsys):
    """A command's code is in packages: `--dry` says what to pass instead."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--dry", "--cli", "hf-compat"])
    assert ended.value.code == 2
    assert "Pass the script" in capsys.readouterr().err
