"""``hf-compat plot``: a file with the curves of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hf_compat.errors import ReportError
from hf_compat.tools.plot.drawing import (
    as_png,
    as_svg,
    check_targets,
    draw,
    inline_svg,
    page,
    require_matplotlib,
    table,
    write_files,
)
from hf_compat.tools.plot.history import History, read_histories


def plot(places: Sequence[str], target: str, *, weight: float | None = None, force: bool = False) -> list[str]:
    """Draw the curves of runs into a file, and return what was read and written, a sentence each.

    Args:
        places: Folders of runs, checkpoints, or state files.
        target: A ``.png``, ``.svg`` or ``.html`` file.
        weight: Of the past in smoothed curves, from 0 to below 1; by default more for longer curves.
        force: Whether to replace a file that was not made here.

    Raises:
        CheckpointError: If a run cannot be read or has no logs.
        MissingPackageError: If matplotlib is not installed.
        ReportError: If the target cannot be written, or the weight is not below 1.
    """
    goal = Path(target)
    make = _KINDS.get(goal.suffix.lower())
    if make is None:
        raise ReportError(f"`{target}`: unsupported file type. Use one of {', '.join(_KINDS)}.")
    if weight is not None and not 0 <= weight < 1:
        raise ReportError(f"`--smooth {weight:g}`: pass a number from 0 (no smoothing) to below 1.")
    require_matplotlib()
    check_targets([goal], force=force)
    histories = read_histories(places)
    content = make(draw(histories, weight=weight), histories)
    read = [f"{item.name}: `{item.file}`, {item.last_step:,} update steps." for item in histories]
    return [*read, *write_files({goal: content})]


def _page(figure: Any, histories: Sequence[History]) -> bytes:
    title = " · ".join(history.name for history in histories)
    headings = ("run", "file", "update steps", "last loss", "best evaluation", "resumed from")
    rows = [_summary_row(history) for history in histories]
    parts = [
        f"<h1>{escape(title)}</h1>",
        inline_svg(as_svg(figure), f"Curves of {title}"),
        table(headings, rows, text_columns=2),
    ]
    return page(title, "\n".join(parts)).encode()


def _summary_row(history: History) -> tuple[str, ...]:
    losses, best = history.series.get("loss"), history.best
    value = "" if best is None or best.value is None else f"{best.value:.6g}"
    return (
        history.name,
        str(history.file),
        f"{history.last_step:,}",
        f"{losses.values[-1]:.6g}" if losses else "-",
        "-" if best is None else f"{best.metric or 'metric'} {value} at step {best.step:,}",
        ", ".join(f"{step:,}" for step in history.resumed) or "-",
    )


_KINDS: dict[str, Callable[[Any, Sequence[History]], bytes]] = {
    ".png": lambda figure, _: as_png(figure),
    ".svg": lambda figure, _: as_svg(figure).encode(),
    ".html": _page,
}
"""End of a file's name to what makes its content."""
