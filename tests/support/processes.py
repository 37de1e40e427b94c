"""Starting real processes for a test, and never leaving one behind."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.support.paths import ROOT, SCRIPTS

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
LAUNCHER_VARIABLES = (
    *("MASTER_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "JSM_", "LSB_", "KUBERNETES_", "PET_", "LT_"),
    *("ACCELERATE_", "TORCHELASTIC_"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command and all that it started ended."""

    code: int
    """0 if all went well; None of the processes is left in any case."""
    output: str


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without any launcher's variables, with ``variables``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHER_VARIABLES) and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    path = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])
    shared = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return kept | shared | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | variables


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PATIENCE = 300
"""Seconds after which what a test waits for counts as hanging; the one limit of all waits, on any machine."""


def start(command: Sequence[Any], folder: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    """Start ``command`` in ``folder`` and in a session of its own, its output kept."""
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=clean_environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(processes: Sequence[subprocess.Popen[str]], patience: float = PATIENCE) -> list[Ended]:
    """Wait for ``processes``, as :func:`start` returns them; kill them, and all that they started, if they hang.

    Raises:
        TimeoutError: If one is still running after ``patience``, in seconds.
    """
    ended: list[Ended] = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=patience)
            ended.append(Ended(process.returncode, output))
    except subprocess.TimeoutExpired as late:
        raise TimeoutError(f"still running after {patience} s: {late.output}") from late
    finally:
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return ended


@cache
def build_cpu_adam() -> None:
    """Have DeepSpeed's optimizer for host memory built: minutes in which a run that needs it would seem to hang.

    Raises:
        TimeoutError: If that hangs, as behind the lock of one that was killed: ``~/.cache/torch_extensions/*/*/lock``.
    """
    code = "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"
    (ended,) = finish([start([sys.executable, "-c", code])], patience=6 * PATIENCE)
    assert ended.code == 0, ended.output


def torchrun(script: Path, *words: Any, processes: int = 2, **variables: str) -> Ended:
    """Run ``script`` in ``processes`` processes of one node."""
    command = [*TORCHRUN, f"--nproc-per-node={processes}", script, *words]
    return finish([start(command, **variables)])[0]


class ForkServer:
    """A process that has imported what takes seconds, and is forked for each call; it ends with this process.

    Args:
        script: What it runs, which calls :func:`tests.support.forking.serve`.
        **variables: Environment variables of the process and of all that are forked from it.
    """

    def __init__(self, script: Path, **variables: str) -> None:
        self._variables = variables
        # Without buffers: what has been read is what has been waited for.
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            bufsize=0,
            env=clean_environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._close)

    def call(self, folder: Path, variables: dict[str, str], **request: Any) -> Ended:
        """Carry out a request in a forked process, and end all that it started if it hangs.

        Args:
            folder: An empty folder, or one that holds what the request names.
            variables: Further environment variables of the forked process.
            **request: What the script's function is given, besides ``folder``; as JSON.

        Raises:
            TimeoutError: If it is still running after ``PATIENCE``.
        """
        assert self._process.stdin is not None, "it is a pipe"
        environment = clean_environment(**self._variables | variables)
        whole = {"folder": str(folder), "directory": os.getcwd(), "environment": environment, **request}
        os.mkfifo(folder / "output")  # no file: a script may limit the size of those it writes
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.append((folder / "output").read_text()), daemon=True)
        reader.start()
        self._process.stdin.write((json.dumps(whole) + "\n").encode())
        self._process.stdin.flush()
        process = self._answer()
        try:
            in_time = self._has_answered()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            code = self._answer()  # of a killed process, too: what is read next is of the next call
        reader.join(PATIENCE)
        if not in_time:
            raise TimeoutError(f"still running after {PATIENCE} s: {''.join(output)}")
        return Ended(code, output[0])

    def _has_answered(self) -> bool:
        with selectors.DefaultSelector() as selector:
            assert self._process.stdout is not None, "it is a pipe"
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(PATIENCE))

    def _answer(self) -> int:
        assert self._process.stdout is not None, "it is a pipe"
        assert self._has_answered(), f"no answer in {PATIENCE} s"
        line = self._process.stdout.readline()
        assert line, f"the process that is forked has ended: {self._process.wait(PATIENCE)}"
        return int(line)

    def _close(self) -> None:
        self._process.communicate(timeout=PATIENCE)


def forked_ranks(script: Path, *words: Any, processes: int = 2, **variables: str) -> Ended:
    """Run ``script`` as :func:`torchrun` does, in a fraction of the time: agent and ranks are forked, all imported."""
    return _forked(script, words, processes, variables)


def forked(script: Path, *words: Any, **variables: str) -> Ended:
    """Run ``script`` as ``python script word...`` does, but for the time that its imports take."""
    return _forked(script, words, None, variables)


def _forked(script: Path, words: Sequence[Any], processes: int | None, variables: dict[str, str]) -> Ended:
    request = {"script": str(script), "words": [str(word) for word in words], "processes": processes}
    with tempfile.TemporaryDirectory() as folder:
        return _agents().call(Path(folder), variables, **request)


@cache
def _agents() -> ForkServer:
    return ForkServer(SCRIPTS / "forked_ranks.py")


def run_scenarios(folder: Path, words: Sequence[str], *, processes: int = 2) -> None:
    """Run scenarios of ``distributed_scenarios`` one after the other in one launch.

    Args:
        folder: Where they write; their outcomes are kept there.
        words: ``library:scenario``, such as ``upstream:everything_at_once``.
        processes: How many.

    Raises:
        AssertionError: If a process failed; its traceback is told.
    """
    ended = forked_ranks(SCRIPTS / "distributed_worker.py", folder, *words, processes=processes)
    errors = [f"{path}:\n{path.read_text()}" for path in sorted(folder.rglob("*.error"))]
    assert ended.code == 0, "\n".join(errors) or ended.output


def outcome(folder: Path, name: str, library: str, rank: int) -> Any:
    """Return what process ``rank`` saw of a scenario under ``library``."""
    return torch.load(folder / name / library / f"{rank}.outcome", weights_only=False)
