"""What a process does that is forked for each call, all imported; see ``processes.ForkServer``."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn


def serve(imported: Sequence[str], act: Callable[[dict[str, Any]], int]) -> None:
    """Import modules, then read a request a line from standard input, and carry out each in a process that is forked.

    What it answers, a line each, is the id of the process that it has forked and, once that is no more, its status.

    Args:
        imported: Names of the modules.
        act: Is given the request in the forked process, and returns its status.
    """
    for name in imported:
        importlib.import_module(name)
    gc.freeze()  # a collection in a forked process would copy what all share, and takes long
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        process = os.fork()
        if process == 0:
            _become(request)
            exit_with(act, request)
        _say(process)
        _say(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def exit_with(act: Callable[..., int | None], *given: Any) -> NoReturn:
    """End this process with what ``act`` returns, and without freeing all that was imported."""
    code: int | None = 0
    try:
        code = act(*given)
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _become(request: dict[str, Any]) -> None:
    """Give a forked process what a started one has: a session, words, directory, environment and output of its own."""
    folder = Path(request["folder"])
    os.setsid()
    sys.argv[1:] = [str(folder)]  # with which Lightning starts further ranks
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder / "output", os.O_WRONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _say(value: int) -> None:
    os.write(1, f"{value}\n".encode())
