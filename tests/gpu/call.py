"""The script in which the functions of :mod:`tests.gpu.harness` are called.

With the folder of a call as its word it makes that call. Without one it is a server, see :mod:`tests.support.forking`,
whose requests are ``{"folder", "ranks"}``: it makes the call in a process that it forks, or in one for each rank.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.forking import exit_with, serve

IMPORTED = ("pytest", "accelerate", "transformers.trainer", "hf_compat.lightning", "tests.gpu.comparing")
"""What most calls need; with the modules that a Trainer of either library imports on its first use."""


def call(folder: Path) -> None:
    """Call the function that lies in ``folder``, and put its value there."""
    function, given, named = pickle.loads((folder / "call.pickle").read_bytes())
    value = function(*given, **named)
    (folder / f"value.{os.environ.get('RANK', '0')}").write_bytes(pickle.dumps(value))


def call_on_ranks(folder: Path, ranks: int) -> int:
    """Call the function in a process for each rank; one that fails ends the others, as a launcher does."""
    rank_zero = importlib.import_module("lightning.fabric.utilities.rank_zero").rank_zero_only
    running = set()
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
            rank_zero.rank = rank  # which Lightning has read as it was imported
            exit_with(call, folder)
        running.add(process)
    code = 0
    while running:
        process, status = os.wait()
        running.remove(process)
        if status and not code:
            code = 1
            for other in running:
                os.kill(other, signal.SIGKILL)
    return code


def act(request: dict[str, Any]) -> int:
    """Make the call of ``request``."""
    assert not torch.cuda.is_initialized(), "processes that are forked could not use the GPUs"
    folder = Path(request["folder"])
    if request["ranks"] is not None:
        return call_on_ranks(folder, request["ranks"])
    call(folder)
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        call(Path(sys.argv[1]))
    else:
        serve(IMPORTED, act)
