"""Functions and scripts on fake GPUs, each in processes of its own, since the device changes torch for all of one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.build import reason_to_skip
from tests.support.paths import ROOT
from tests.support.processes import TORCHRUN, Ended, finish, start

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
    return _call([sys.executable], function, given, named, devices, variables)[0]


def run_on_gpus(
    function: Callable[..., Any],
    *given: Any,
    processes: int = 2,
    devices: int = 2,
    variables: dict[str, str] | None = None,
    **named: Any,
) -> list[Any]:
    """Return what ``function`` returned on each rank of a launch by torchrun, in the order of ranks.

    Each process sees all ``devices``; ``backend="nccl"`` works between them. The rest is as in :func:`run_on_gpu`.
    """
    launcher = [*TORCHRUN, f"--nproc-per-node={processes}"]
    return _call(launcher, function, given, named, devices, variables)


def run_script_on_gpus(
    script: Path, *words: Any, processes: int | None = None, devices: int = 1, **variables: str
) -> Ended:
    """Run a script in a process that sees ``devices`` GPUs, or under torchrun in ``processes`` of them."""
    launcher = [sys.executable] if processes is None else [*TORCHRUN, f"--nproc-per-node={processes}"]
    return finish([start_on_gpus([*launcher, script, *words], devices=devices, **variables)])[0]


def start_on_gpus(command: Sequence[Any], *, devices: int = 1, **variables: str) -> subprocess.Popen[str]:
    """Start a command that sees ``devices`` GPUs, as does every Python process that it starts."""
    path = os.pathsep.join([str(STARTUP), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return start(command, **{"FAKE_GPUS": str(devices), "PYTHONPATH": path, **variables})


def _call(
    launcher: list[str],
    function: Callable[..., Any],
    given: tuple[Any, ...],
    named: dict[str, Any],
    devices: int,
    variables: dict[str, str] | None,
) -> list[Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "call.pickle").write_bytes(pickle.dumps((function, given, named)))
        process = start_on_gpus([*launcher, CALL, folder], devices=devices, **(variables or {}))
        ended = finish([process])[0]
        assert ended.code == 0, ended.output
        values = sorted(folder.glob("value.*"), key=lambda path: int(path.suffix[1:]))
        return [pickle.loads(path.read_bytes()) for path in values]
