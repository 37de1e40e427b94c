"""Functions and scripts on fake GPUs, each in processes of its own, since the device changes torch for all of one.

Imports take longer than most calls: a process for each number of GPUs has made them, and is forked for each call.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.build import reason_to_skip
from tests.support.paths import ROOT
from tests.support.processes import TORCHRUN, Ended, ForkServer, finish, free_port, start

SKIPPED = reason_to_skip()
needs_fake_gpu = pytest.mark.skipif(SKIPPED is not None, reason=SKIPPED or "")
"""The mark of a test that uses the device."""
CALL = Path(__file__).with_name("call.py")
STARTUP = Path(__file__).with_name("startup")
"""A folder on the path of Python whose ``sitecustomize.py`` installs the device."""


def run_on_gpu(
    function: Callable[..., Any],
    *given: Any,
    devices: int = 1,
    variables: dict[str, str] | None = None,
    **named: Any,
) -> Any:
    """Return ``function(*given, **named)`` of a process with GPUs.

    Args:
        function: A function of a module that can be imported; arguments and value are pickled, tensors on the CPU.
        *given: Its arguments.
        devices: GPUs that the process sees.
        variables: Further environment variables, such as ``FAKE_GPU_MEMORY``.
        **named: Its keyword arguments.

    Raises:
        AssertionError: If the process failed; its output is in the message.
    """
    variables = variables or {}
    if any(name.startswith("FAKE_") for name in variables):  # of other devices than the server's
        return _call([sys.executable], function, given, named, devices, variables)[0]
    with tempfile.TemporaryDirectory() as name:
        folder = _folder_of_call(name, function, given, named)
        return _values(folder, _server(devices).call(folder, variables, ranks=None))[0]


def run_on_gpus(
    function: Callable[..., Any],
    *given: Any,
    processes: int = 2,
    devices: int = 2,
    variables: dict[str, str] | None = None,
    by_torchrun: bool = False,
    **named: Any,
) -> list[Any]:
    """Return what ``function`` returned on each of several ranks, in the order of ranks.

    Each process sees all ``devices``; ``backend="nccl"`` works between them. The processes are forked, with the
    variables that say which rank each is; with ``by_torchrun`` a real launch starts them, which takes as long as their
    imports. The rest is as in :func:`run_on_gpu`.
    """
    variables = variables or {}
    if by_torchrun or any(name.startswith("FAKE_") for name in variables):
        launcher = [*TORCHRUN, f"--nproc-per-node={processes}"]
        return _call(launcher, function, given, named, devices, variables)
    world = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as name:
        folder = _folder_of_call(name, function, given, named)
        return _values(folder, _server(devices).call(folder, {**world, **place, **variables}, ranks=processes))


def run_script_on_gpus(
    script: Path, *words: Any, processes: int | None = None, devices: int = 1, **variables: str
) -> Ended:
    """Run a script in a process that sees ``devices`` GPUs, or under torchrun in ``processes`` of them."""
    launcher = [sys.executable] if processes is None else [*TORCHRUN, f"--nproc-per-node={processes}"]
    return finish([start_on_gpus([*launcher, script, *words], devices=devices, **variables)])[0]


def start_on_gpus(command: Sequence[Any], *, devices: int = 1, **variables: str) -> subprocess.Popen[str]:
    """Start a command that sees ``devices`` GPUs, as does every Python process that it starts."""
    return start(command, **{**_environment(devices), **variables})


def _environment(devices: int) -> dict[str, str]:
    path = os.pathsep.join([str(STARTUP), str(ROOT), os.environ.get("PYTHONPATH", "")])
    # DeepSpeed takes GPUs by itself, unless a Trainer on the CPU has set this variable for the whole process.
    return {"FAKE_GPUS": str(devices), "PYTHONPATH": path, "DS_ACCELERATOR": "cuda"}


def _call(
    launcher: list[str],
    function: Callable[..., Any],
    given: tuple[Any, ...],
    named: dict[str, Any],
    devices: int,
    variables: dict[str, str] | None,
) -> list[Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = _folder_of_call(name, function, given, named)
        process = start_on_gpus([*launcher, CALL, folder], devices=devices, **(variables or {}))
        return _values(folder, finish([process])[0])


def _folder_of_call(name: str, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Path:
    folder = Path(name)
    (folder / "call.pickle").write_bytes(pickle.dumps((function, given, named)))
    return folder


def _values(folder: Path, ended: Ended) -> list[Any]:
    assert ended.code == 0, ended.output
    values = sorted(folder.glob("value.*"), key=lambda path: int(path.suffix[1:]))
    return [pickle.loads(path.read_bytes()) for path in values]


@cache
def _server(devices: int) -> ForkServer:
    """Return a process with ``devices`` GPUs, none of which it has used; see ``call.py``."""
    return ForkServer(CALL, **_environment(devices))
