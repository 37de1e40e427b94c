"""``hf-compat verify``: one script under both Trainers, and what differs."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_compat.errors import ReportError, is_installed, missing_package
from hf_compat.masking import masked_words
from hf_compat.tools.plot.drawing import as_png, as_svg
from hf_compat.tools.plot.output import check_targets, write_files
from hf_compat.tools.verify.comparing import TOLERANCES, Comparison, compare
from hf_compat.tools.verify.picture import draw_comparison
from hf_compat.tools.verify.record import Record
from hf_compat.tools.verify.report import Report, as_json, as_page, as_table
from hf_compat.tools.verify.running import ScriptRun, run_recorded

__all__ = ["VerifyOptions", "split_words", "verify"]

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
        raise ReportError(f"`{script}` does not exist: pass a script, written for transformers' Trainer.")
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
    contents = (as_json(report).encode(), as_png(figure), as_page(report, as_svg(figure)).encode())
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
