"""``hf-compat verify``: one script under both Trainers, and what differs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hf_compat
from hf_compat.errors import ReportError, is_installed, missing_package
from hf_compat.installing.children import VARIABLE
from hf_compat.masking import masked_text, masked_words, secrets_in
from hf_compat.tools.plot.drawing import as_png, as_svg, check_targets, write_files
from hf_compat.tools.verify.comparing import TOLERANCES, Comparison, Record, compare, names_below, read_record
from hf_compat.tools.verify.redirecting import copy_working_directory
from hf_compat.tools.verify.report import Report, as_json, as_page, as_table, draw_comparison

# Runs a script in a process of its own, or several, under either Trainer, and returns the record.


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


_NAMES = ("verify.json", "verify.png", "verify.html")
_NEEDED = ("transformers", "accelerate", "matplotlib")
"""transformers' Trainer imports the second when it is made; the third draws the curves."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a verification."""

    steps: int = 20
    """Update steps after which each ``train`` call is stopped."""
    processes: int = 1
    noise: bool = False
    """Whether to run transformers' Trainer twice."""
    tolerance: float | None = None
    """Largest relative difference that counts as equal; by default that of the precision."""
    output: Path = Path()
    """Folder of the three files; made if it is not there, but not the folders above it."""
    copies: bool = True
    """Whether each run works in a copy of the working directory."""
    force: bool = False
    """Whether to replace files that were not made here."""


def verify(script: str, words: Sequence[str], options: VerifyOptions) -> tuple[str, bool]:
    """Run a script with transformers' Trainer and with ours, and write how they compare.

    Returns:
        What to print, and whether nothing differs by more than its tolerance.

    Raises:
        MissingPackageError: If transformers, accelerate or matplotlib is not installed.
        ReportError: If the options cannot be used, the script fails, or a file cannot be written.
    """
    path = Path(script)
    _check(path, options)
    task = ScriptRun(path, tuple(words), options.steps, options.processes, options.copies)
    with tempfile.TemporaryDirectory(prefix="hf-compat-verify-", ignore_cleanup_errors=True) as folder:
        upstream = _run(task, Path(folder) / "transformers", is_ours=False)
        again = _run(task, Path(folder) / "noise", is_ours=False) if options.noise else None
        ours = _run(task, Path(folder) / "hf_compat", is_ours=True)
        tolerance = options.tolerance
        if tolerance is None:
            tolerance = TOLERANCES[str(upstream.facts["precision"])]
        noise: Comparison | None = None if again is None else compare(upstream, again, tolerance)
        comparison = compare(upstream, ours, tolerance)
    command = shlex.join([script, *masked_words(words)])
    report = Report(command, options.steps, upstream, ours, comparison, noise)
    written = _write(report, options.output)
    return "\n".join([_tolerances(options), as_table(report), "", *written]), comparison.is_equal


def _check(script: Path, options: VerifyOptions) -> None:
    for name, number in (("--steps", options.steps), ("--processes", options.processes)):
        if number < 1:
            raise ReportError(f"`{name} {number}`: pass 1 or more.")
    if options.tolerance is not None and not 0 <= options.tolerance < 1:
        raise ReportError(f"`--tolerance {options.tolerance:g}`: pass a number from 0 to below 1.")
    if not script.is_file():
        what = "is no file" if script.exists() else "does not exist"
        raise ReportError(f"`{script}` {what}: pass a script, written for transformers' Trainer.")
    for package in _NEEDED:
        if not is_installed(package):
            raise missing_package(package, extra="verify", purpose="`hf-compat verify`")
    if options.output.parent.is_dir():
        options.output.mkdir(exist_ok=True)
    check_targets([options.output / name for name in _NAMES], force=options.force)


def _run(task: ScriptRun, folder: Path, *, is_ours: bool) -> Record:
    name = "hf_compat's" if is_ours else "transformers'"
    sys.stderr.write(f"Running {task.script} with {name} Trainer …\n")
    try:
        return run_recorded(task, folder, is_ours=is_ours)
    except ReportError as error:
        own = [word for word in task.words if word.partition("=")[0] in (*_FLAGS, *_WITH_VALUE)]
        if not own:
            raise
        place = "options of verify go before the script or at the very end."
        raise ReportError(f"{error}\n`{own[0]}` was passed to the script: {place}") from None


def _tolerances(options: VerifyOptions) -> str:
    if options.tolerance is not None:
        return f"Tolerance: {options.tolerance:g}.\n"
    told = ", ".join(f"{precision} {tolerance:g}" for precision, tolerance in TOLERANCES.items())
    return f"Tolerances by precision: {told}.\n"


def _write(report: Report, folder: Path) -> list[str]:
    figure = draw_comparison(report)
    picture = as_png(figure)
    figure.suptitle("")  # a page has it in its text
    contents = (as_json(report).encode(), picture, as_page(report, as_svg(figure)).encode())
    return write_files(dict(zip((folder / name for name in _NAMES), contents, strict=True)))


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a script's own arguments, and the options of ``verify`` that stand behind them.

    What follows ``--`` is the script's in any case.
    """
    if words and words[0] == "--":
        return list(words[1:]), []
    end = len(words)
    while end:
        if words[end - 1] in _FLAGS or (words[end - 1].partition("=")[0] in _WITH_VALUE and "=" in words[end - 1]):
            end -= 1
        elif end > 1 and words[end - 2] in _WITH_VALUE:
            end -= 2
        else:
            break
    return list(words[:end]), list(words[end:])


_FLAGS = ("--noise", "--force", "--no-copy")
_WITH_VALUE = ("--steps", "--processes", "--tolerance", "--output")
