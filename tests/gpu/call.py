"""The script in which the functions of :mod:`tests.gpu.harness` are called.

With the folder of a call as its word it makes that call. Without one it imports what takes seconds, reads a call a line
from standard input, ``{"folder", "directory", "environment", "ranks"}`` as JSON, and makes each in a process that it
forks, or in one for each rank: what it answers, a line each, is the id of the process that it has forked and, once that
is no more, its exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

IMPORTED = ("pytest", "accelerate", "transformers.trainer", "hf_compat.lightning", "tests.gpu.comparing")
"""What most calls need; with the modules that a Trainer of either library imports on its first use."""


def call(folder: Path) -> None:
    """Call the function that lies in ``folder``, and put its value there."""
    function, given, named = pickle.loads((folder / "call.pickle").read_bytes())
    value = function(*given, **named)
    (folder / f"value.{os.environ.get('RANK', '0')}").write_bytes(pickle.dumps(value))


def become(folder: Path, directory: str, environment: dict[str, str]) -> None:
    """Give a forked process what a started one has: a session, words, directory, environment and output of its own."""
    os.setsid()
    sys.argv[1:] = [str(folder)]  # with which Lightning starts further ranks
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def call_and_exit(folder: Path) -> NoReturn:
    """Call the function as a process does that was started for it, but end without freeing all that was imported."""
    code = 0
    try:
        call(folder)
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def call_on_ranks(folder: Path, ranks: int) -> NoReturn:
    """Call the function in a process for each rank; one that fails ends the others, as a launcher does."""
    rank_zero = importlib.import_module("lightning.fabric.utilities.rank_zero").rank_zero_only
    running = set()
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
            rank_zero.rank = rank  # which Lightning has read as it was imported
            call_and_exit(folder)
        running.add(process)
    code = 0
    while running:
        process, status = os.wait()
        running.remove(process)
        if status and not code:
            code = 1
            for other in running:
                os.kill(other, signal.SIGKILL)
    os._exit(code)


def answer(value: int) -> None:
    """Write a line."""
    os.write(1, f"{value}\n".encode())


def serve() -> None:
    """Fork a process for each call."""
    assert not torch.cuda.is_initialized(), "processes that are forked could not use the GPUs"
    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        folder = Path(given["folder"])
        process = os.fork()
        if process == 0:
            become(folder, given["directory"], given["environment"])
            if given["ranks"] is None:
                call_and_exit(folder)
            call_on_ranks(folder, given["ranks"])
        answer(process)
        answer(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        call(Path(sys.argv[1]))
    else:
        for name in IMPORTED:
            importlib.import_module(name)
        serve()
