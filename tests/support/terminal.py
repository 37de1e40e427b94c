"""A terminal that a test can read: a real pseudo-terminal as the standard streams, and the screen that it shows."""

from __future__ import annotations

import ast
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hf_compat
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.processes import Ended, clean_environment

BARS_ALONE = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "dataloader_pin_memory": False}
"""Arguments of a run that shows nothing but what it logs and its bars."""
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Terminal:
    """What a program wrote to a terminal."""

    def __init__(self) -> None:
        self.text = ""

    @property
    def screen(self) -> list[str]:
        """The lines that it shows at the end, those that scrolled away too."""
        return screen_of(self.text)


def screen_of(text: str) -> list[str]:
    """Return the lines that a terminal shows after ``text``; long lines are not wrapped."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(text):
        control = CONTROL.match(text, at)
        if control:
            at = control.end()
            if control[2] == "A":
                row = max(row - int(control[1] or 1), 0)
            elif control[2] == "K":
                lines[row] = "" if control[1] == "2" else lines[row][:column]
            continue
        sign, at = text[at], at + 1
        if sign == "\r":
            column = 0
        elif sign == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row], column = line[:column] + sign + line[column + 1 :], column + 1
    shown = [line.rstrip() for line in lines]
    return shown[: max((at for at, line in enumerate(shown) if line), default=-1) + 1]


def _resize(descriptor: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def read_all(descriptor: int) -> str:
    """Return what arrives at a terminal until its last writer has closed it."""
    arrived = b""
    while True:
        try:
            read = os.read(descriptor, 65536)
        except OSError:  # how Linux says that there is no writer any more
            read = b""
        if not read:
            return arrived.decode(errors="replace")
        arrived += read


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 120) -> Iterator[Terminal]:
    """Context in which ``sys.stdout`` and ``sys.stderr`` are a terminal; what arrived there is known afterwards."""
    ours, theirs = pty.openpty()
    _resize(theirs, columns)
    terminal = Terminal()

    def collect() -> None:
        terminal.text = read_all(ours)

    reader = threading.Thread(target=collect)
    reader.start()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))  # Rich asks for the size of the process's own streams
        patch.setenv("LINES", "40")
        patch.setenv("TERM", "xterm-256color")
        try:
            with open(theirs, "w", encoding="utf-8", buffering=1) as stream:
                patch.setattr(sys, "stdout", stream)
                patch.setattr(sys, "stderr", stream)
                yield terminal
        finally:
            reader.join()
            os.close(ours)


def run_on_terminal(command: Sequence[object], columns: int = 120, **streams: Any) -> Ended:
    """Run ``command`` as a process of its own on a terminal; return how it ended and what arrived there.

    Args:
        command: The command.
        columns: Width of the terminal.
        **streams: ``stdout`` or ``stderr``, where one of them is to go elsewhere.
    """
    ours, theirs = pty.openpty()
    _resize(theirs, columns)
    environment = clean_environment(TERM="xterm-256color")
    words = [str(word) for word in command]
    with subprocess.Popen(
        words,
        env=environment,
        start_new_session=True,
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs} | streams,
    ) as process:
        os.close(theirs)
        text = read_all(ours)
        os.close(ours)
    return Ended(process.returncode, text)


def trainer_with_bars(folder: Path, library: Any = hf_compat, callbacks: Any = None, **fields: Any) -> Any:
    """Return a Trainer of 2 epochs of 4 update steps, which logs each step and evaluates 3 batches after 4 and 8."""
    plan = {"num_train_epochs": 2, "logging_steps": 1, "eval_strategy": "epoch", "disable_tqdm": False}
    batches = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    args = library.TrainingArguments(str(folder), **BARS_ALONE | plan | batches | fields)
    rows, others = ListDataset(vector_rows(8)), ListDataset(vector_rows(6))
    return library.Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=others, callbacks=callbacks)


def logs_among(lines: Sequence[str]) -> list[list[str]]:
    """Return the names in each line that is a log, such as ``{'loss': '0.5'}``."""
    return [list(ast.literal_eval(line)) for line in lines if line.startswith("{")]
