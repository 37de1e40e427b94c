"""Runs a script in a process of its own, or several, under either Trainer, and returns the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import hf_compat
from hf_compat.errors import ReportError
from hf_compat.installing.children import VARIABLE
from hf_compat.masking import masked_text, secrets_in
from hf_compat.tools.verify.record import Record, names_below, read_record
from hf_compat.tools.verify.redirecting import copy_working_directory

__all__ = ["ScriptRun", "run_recorded"]

_MODULE = "hf_compat.tools.verify.child"
_SHOWN_LINES = 25


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script with its arguments and environment."""

    script: Path
    words: tuple[str, ...]
    steps: int
    """Update steps after which a ``train`` call is stopped."""
    processes: int = 1
    copies: bool = True
    """Whether it runs in a copy of the working directory."""


def run_recorded(task: ScriptRun, folder: Path, *, is_ours: bool) -> Record:
    """Run the script and return what was recorded.

    Args:
        task: What is run.
        folder: A new one for everything that is written.
        is_ours: Whether with hf_compat's Trainer.

    Raises:
        ReportError: If the script fails, or trains with no Trainer of transformers.
    """
    folder.mkdir(parents=True)
    here = Path.cwd().resolve()
    place = folder / "working_directory" if task.copies else here
    protected = [str(here), str(task.script.resolve().parent)]
    if task.copies:
        protected += copy_working_directory(here, place)
    full = task.script.resolve()
    copied = sorted(names_below(place)) if task.copies else []
    script = place / full.relative_to(here) if full.is_relative_to(here) else full
    written = {
        "folder": str(folder.resolve()),
        "working_directory": str(folder.resolve() if place == here else place.resolve()),
        "is_ours": is_ours,
        "steps": task.steps,
        "protected": protected,
        "script": str(script),
        "words": list(task.words),
        "copied": copied,
    }
    file = folder / "task.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    output = folder / "output.txt"
    with output.open("wb") as stream:
        words, variables = [*_command(task.processes), str(file)], _environment(is_ours=is_ours)
        code = subprocess.run(words, cwd=place, env=variables, stdout=stream, stderr=stream).returncode
    name = "hf_compat's" if is_ours else "transformers'"
    if code != 0:
        text = masked_text(output.read_text(encoding="utf-8", errors="replace"), secrets_in(task.words, os.environ))
        lines = text.splitlines()[-_SHOWN_LINES:]
        raise ReportError("\n".join([f"`{task.script}` failed with {name} Trainer, exit status {code}:", *lines]))
    record = read_record(folder)
    expected = "hf_compat" if is_ours else "transformers"
    if record.library != expected:
        found = "it created none" if record.library is None else f"it used {record.library}'s"
        raise ReportError(
            f"`{task.script}` did not use {name} Trainer ({found}), so there is nothing to compare. Pass a script "
            "that imports `Trainer` from transformers (not hf_compat) and creates one."
        )
    if not record.steps:
        raise ReportError(f"`{task.script}` made no update step with {name} Trainer, so there is nothing to compare.")
    return record


def _command(processes: int) -> list[str]:
    if processes == 1:
        return [sys.executable, "-m", _MODULE]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={processes}", "-m", _MODULE),
    ]


def _environment(*, is_ours: bool) -> dict[str, str]:
    """Return the environment, in which nothing is installed yet and no bytecode is written."""
    variables = dict(os.environ)
    variables.pop("TENSORBOARD_LOGGING_DIR", None)
    home = Path(hf_compat.__file__).resolve().parents[1]
    if home.name != "site-packages":
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), variables.get("PYTHONPATH")]))
    return {"PYTHONHASHSEED": "0", **variables, "PYTHONDONTWRITEBYTECODE": "1", VARIABLE: str(int(is_ours))}
