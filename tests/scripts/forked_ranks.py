"""A server whose requests are torchrun's: its agent and ranks find imported what takes seconds.

The agent is torch's own, with its rendezvous, variables and way to end; only the processes are forked where torchrun
starts new ones. For scenarios whose numbers matter; how a process starts and exits is tested with torchrun itself.
A request is ``{"script", "words", "processes"}``, see :mod:`tests.support.forking`; without processes it is as
``python script word...``.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.support.forking import serve

IMPORTED = ("accelerate", "lightning.pytorch", "transformers.trainer", "hf_compat.trainer", "tests.support.helpers")


def run(script: str, *words: str) -> None:
    """Run ``script``, as ``python script word...`` would."""
    rank_zero = importlib.import_module("lightning.fabric.utilities.rank_zero").rank_zero_only
    rank_zero.rank = int(os.environ.get("RANK", "0"))  # which Lightning has read as it was imported
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def act(request: dict[str, Any]) -> int:
    """Launch the ranks of ``request``, or run its script in this process."""
    if request["processes"] is None:
        run(request["script"], *request["words"])
        return 0
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=request["processes"],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        monitor_interval=0.1,
        max_restarts=0,
    )
    elastic_launch(config, run)(request["script"], *request["words"])
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(IMPORTED, act)
