"""Launchers as the pages show them: their lines, for processes of a test, and stand-ins for those of a cluster."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.interrupted import fake_scontrol
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import free_port

PROGRAMS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.launch"}
"""Command → its module."""


def block_of(page: str, name: str) -> str:
    """Return the block of a page below the comment ``launcher: name``."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- launcher: {re.escape(name)} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    return block


def launcher(name: str, processes: int, *, endpoint: str | None = None) -> list[str]:
    """Return the words of ``docs/restarts.md`` that start a script, without the script.

    Args:
        name: The launcher's, as in the comment above its block.
        processes: On each node, instead of eight.
        endpoint: Instead of the block's, if it has one.
    """
    command, *words, script = shlex.split(block_of("restarts", name).replace("\\\n", " "))
    here = {"--nproc-per-node": str(processes), "--num_processes": str(processes), "--rdzv-endpoint": endpoint}
    options = [word.partition("=") for word in words if word != "launch"]
    assert script == "train.py"
    assert "8" in [value for option, _, value in options if option in here]
    written = ["".join((option, is_set, here.get(option) or value)) for option, is_set, value in options]
    return [sys.executable, "-m", PROGRAMS[command], *written]


def pod(endpoint: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of the pods of the PyTorchJob in ``docs/restarts.md``, and what the operator sets in two.

    Args:
        endpoint: Instead of the first pod's.
    """
    job: dict[str, Any] = yaml.safe_load(block_of("restarts", "PyTorchJob"))
    policy, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    command, size, script = container["command"]
    assert (command, size, script) == ("torchrun", "--nproc-per-node=8", "/app/train.py")
    variables = {
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_NNODES": f"{policy['minReplicas']}:2",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }
    return [sys.executable, "-m", PROGRAMS[command], "--nproc-per-node=1"], variables


def slurm_job(folder: Path) -> dict[str, str]:
    """Return the variables of job 17, of two tasks, which find an ``srun`` and a ``scontrol`` in ``folder``.

    ``scontrol`` notes its arguments in ``folder/calls``.
    """
    variables = fake_scontrol(folder)
    srun = folder / "srun"
    srun.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPTS / "srun.py"}" "$@"\n')
    srun.chmod(0o755)
    python = str(Path(sys.executable).parent)
    return variables | {
        "PATH": os.pathsep.join([str(folder), python, os.environ["PATH"]]),
        "MASTER_PORT": str(free_port()),
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
