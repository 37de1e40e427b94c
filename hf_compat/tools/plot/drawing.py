"""Draws the curves of runs, legible without colours: each run has a line style and a marker of its own."""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hf_compat.atomic_files import write_bytes
from hf_compat.errors import ReportError, require_package
from hf_compat.tools.plot.history import History, Panel, Series, is_evaluation, panels_of

# Writing pictures and self-contained pages: a file that was not made here is never replaced unasked.


MADE_BY = "Made by hf-compat"
"""Stands near the beginning of each file that is made here."""
_HEAD = 8192
"""Bytes of a file in which it is looked for."""

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1c1c; background: #fff;
  max-width: 1080px; margin: 0 auto; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0 12px; } code, td.number { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
table { border-collapse: collapse; width: 100%; } div.wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid #ddd;
  overflow-wrap: anywhere; }
th { font-weight: 600; border-bottom: 2px solid #888; } td.number, th.number { text-align: right; white-space: nowrap; }
tr.differs td { background: #fdecea; } tr.differs td:first-child { border-left: 4px solid #b3261e; padding-left: 6px; }
figure { margin: 12px 0; } svg { width: 100%; height: auto; }
.equal { color: #0f6b38; } .different { color: #b3261e; } .note { color: #555; }
"""


def check_targets(targets: Sequence[Path], *, force: bool) -> None:
    """Refuse targets that cannot be written, or would replace what was not made here.

    Raises:
        ReportError: If there is one.
    """
    for target in targets:
        if not target.parent.is_dir():
            raise ReportError(f"`{target}` cannot be written: the folder `{target.parent}` does not exist.")
        if target.is_dir():
            raise ReportError(f"`{target}` is a folder: name a file.")
        if os.path.lexists(target) and not force and not _is_own(target):
            raise ReportError(
                f"`{target}` already exists and was not written by hf-compat. Choose another name, or pass `--force`."
            )


def write_files(contents: Mapping[Path, bytes]) -> list[str]:
    """Write each file, whole or not at all, and return what was done, a sentence each.

    Raises:
        ReportError: If one cannot be written.
    """
    done = []
    for target, content in contents.items():
        word = "Replaced" if os.path.lexists(target) else "Wrote"
        try:
            write_bytes(target, content)
        except OSError as error:
            raise ReportError(f"`{target}` cannot be written: {error}") from error
        done.append(f"{word} `{target}`.")
    return done


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MADE_BY.encode() in file.read(_HEAD)
    except OSError:
        return False


def page(title: str, body: str) -> str:
    """Return an HTML page that loads nothing from elsewhere.

    Args:
        title: Plain text.
        body: HTML.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" '
        f'content="{MADE_BY}">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, marked: Sequence[bool] = (), text_columns: int = 1
) -> str:
    """Return an HTML table.

    Args:
        headings: Plain text.
        rows: Plain text, as many cells each as there are headings.
        marked: Which rows are marked as different.
        text_columns: Number of columns, from the left, that are no numbers.
    """
    marks = marked or [False] * len(rows)
    head = _row("th", headings, text_columns, is_marked=False)
    body = [_row("td", row, text_columns, is_marked=mark) for row, mark in zip(rows, marks, strict=True)]
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n' + "\n".join(body) + "\n</tbody></table></div>"


def _row(tag: str, cells: Sequence[str], text_columns: int, *, is_marked: bool) -> str:
    inside = "".join(
        f"<{tag}>{escape(cell)}</{tag}>" if index < text_columns else f'<{tag} class="number">{escape(cell)}</{tag}>'
        for index, cell in enumerate(cells)
    )
    return f'<tr class="differs">{inside}</tr>' if is_marked else f"<tr>{inside}</tr>"


def inline_svg(svg: str, description: str) -> str:
    """Return an SVG file as a part of a page, with a description for those who cannot see it."""
    drawing = re.sub(r"\A.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
    return f'<figure role="img" aria-label="{escape(description)}">\n{drawing}</figure>'


_COLOURS = ("#0b5394", "#c55a11", "#1b7f4d", "#8e3a80", "#b8860b", "#2b2b2b", "#b22222")
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)), (0, (9, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_FEW = 40
"""Number of points up to which each gets a marker."""
_LONGEST_NAME = 60
_COLUMNS = {0: 1, 1: 1, 2: 2, 4: 2}
"""Number of panels below the first to the number beside each other, 3 for all others."""
FONTS = {
    "font.size": 9.0,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "svg.hashsalt": "hf-compat",  # the same curves make the same file
    "axes.formatter.use_mathtext": False,
}
"""Settings of matplotlib, for as long as a figure is made or saved."""

_SHARE = 25
"""A curve's number of points over those that count most in a smoothed value."""


@dataclass(frozen=True, slots=True)
class Style:
    """Style of the curves of a run."""

    colour: str
    line: Any
    marker: str


def style_of(index: int) -> Style:
    """Return a look of its own for each run; colours, lines and markers repeat after different numbers of runs."""
    return Style(_COLOURS[index % len(_COLOURS)], _LINES[index % len(_LINES)], _MARKERS[index % len(_MARKERS)])


def require_matplotlib() -> None:
    """Raise an error that names the extra, unless matplotlib is installed.

    Raises:
        MissingPackageError: If it is not.
    """
    require_package("matplotlib", extra="plot", purpose="`hf-compat plot`")


def draw(histories: Sequence[History], *, weight: float | None = None) -> Any:
    """Return a figure of the logs of runs, drawn over each other.

    Args:
        histories: One or more.
        weight: Of the past in smoothed training curves, from 0 to below 1; by default more for longer curves.

    Raises:
        MissingPackageError: If matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = panels_of(dict.fromkeys(name for history in histories for name in history.series))
    columns = _COLUMNS.get(len(panels) - 1, 3)
    rows = math.ceil((len(panels) - 1) / columns)
    with mpl.rc_context(FONTS):
        figure = Figure(figsize=(max(7.5, 3.9 * columns), 3.9 + 2.5 * rows), layout="constrained", facecolor="white")
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.5, *[1.0] * rows])
        for index, panel in enumerate(panels):
            place = grid[0, :] if index == 0 else grid[1 + (index - 1) // columns, (index - 1) % columns]
            _draw_panel(figure.add_subplot(place), panel, histories, weight, is_first=index == 0)
        if len(histories) == 1:
            figure.suptitle(text_of(histories[0].name), fontsize=12, fontweight="bold", x=0.01, ha="left")
        figure.supxlabel(_explanation(histories, weight), fontsize=8, color="#555555")
    return figure


def _draw_panel(axes: Any, panel: Panel, histories: Sequence[History], weight: float | None, *, is_first: bool) -> None:
    plain_axes(axes, panel.title)
    entries: list[tuple[Any, str]] = []
    for index, history in enumerate(histories):
        for place, name in enumerate(name for name in panel.names if name in history.series):
            # One run: each curve has a style of its own. Several: each run has.
            own = style_of(index + (place if len(histories) == 1 else 0))
            marker = _MARKERS[(index + place) % len(_MARKERS)]
            line = _draw_curve(axes, history.series[name], Style(own.colour, own.line, marker), name, weight)
            label = name if len(histories) == 1 else f"{history.name}: {name}" if place else history.name
            entries.append((line, label))
        marks = list(_draw_marks(axes, panel, history, index))
        entries += marks if len(histories) == 1 and (is_first or len(panel.names) > 1) else []
    low, high = axes.dataLim.intervalx
    if high - low < 1:
        axes.set_xlim(low - 1, high + 1)  # a single step, with whole steps beside it
    if is_first or (len(histories) == 1 and len(entries) > 1):
        lines, labels = zip(*entries, strict=True)
        outside = len(entries) > 8
        where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if outside else {"loc": "best"}
        axes.legend(lines, [text_of(label) for label in labels], fontsize=8, framealpha=0.85, **where)


def plain_axes(axes: Any, title: str) -> None:
    """Give an empty panel its title, grid and labels; the horizontal axis has update steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title("\n".join(textwrap.wrap(text_of(title), 44, max_lines=2, placeholder=" …")), loc="left")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4), useOffset=False)
    axes.set_xlabel("update step", fontsize=8, color="#555555")


def _draw_curve(axes: Any, series: Series, style: Style, name: str, weight: float | None) -> Any:
    """Draw one curve and return the line for the legend."""
    steps, values = list(series.steps), list(series.values)
    finite = [value if math.isfinite(value) else math.nan for value in values]
    few = {"marker": style.marker, "markersize": 4.5} if len(values) <= _FEW or is_evaluation(name) else {}
    look = {"color": style.colour, "linestyle": style.line}
    if is_evaluation(name):
        look |= {"markerfacecolor": "white", "markeredgewidth": 1.2}
    smooth = _weight(name, len(values), weight)
    if smooth:
        axes.plot(steps, finite, color=style.colour, linewidth=0.8, alpha=0.3)
        (line,) = axes.plot(steps, smoothed(finite, smooth), linewidth=1.8, **look)
    else:
        (line,) = axes.plot(steps, finite, linewidth=1.5, **look, **few)
    lost = [step for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    if lost:
        axes.plot(lost, [0.03] * len(lost), "x", color=style.colour, markersize=5, transform=axes.get_xaxis_transform())
    return line


def _weight(name: str, points: int, weight: float | None) -> float:
    """Return how much a curve is smoothed: evaluations and the learning rate are exact."""
    if is_evaluation(name) or name == "learning_rate":
        return 0.0
    return usual_weight(points) if weight is None else weight


def _draw_marks(axes: Any, panel: Panel, history: History, index: int) -> Iterator[tuple[Any, str]]:
    """Mark the best and the resumed steps, and yield the marks with what the legend says of them."""
    colour = style_of(index).colour
    for step in history.resumed:
        yield axes.axvline(step, color=colour, linestyle=(0, (1, 2)), linewidth=1.3), f"resumed from step {step:,}"
    best = history.best
    if best is not None and best.value is not None and best.metric in panel.names:
        (star,) = axes.plot(
            [best.step],
            [best.value],
            "*",
            markersize=14,
            color="#ffd34d",
            markeredgecolor=colour,
            markeredgewidth=1.2,
            zorder=5,
            linestyle="none",
        )
        yield star, f"best: {best.value:.6g} at step {best.step:,}"


def _explanation(histories: Sequence[History], weight: float | None) -> str:
    """Return what the marks mean that the picture has."""
    curves = [(name, series) for history in histories for name, series in history.series.items()]
    words = []
    if any(_weight(name, len(series.values), weight) for name, series in curves):
        words.append("faint: as logged, strong: smoothed")
    if any(map(is_evaluation, (name for name, _ in curves))):
        words.append("hollow markers: evaluation")
    if any(history.best and history.best.metric for history in histories):
        words.append("★ best evaluation")
    if any(history.resumed for history in histories):
        words.append("dotted vertical line: resumed")
    if any(not math.isfinite(value) for _, series in curves for value in series.values):
        words.append("\N{MULTIPLICATION SIGN} not finite")
    return "   ·   ".join(words)


def text_of(name: str) -> str:
    """Return a name as it is drawn: shortened in the middle, and not read as a formula or as hidden."""
    if len(name) > _LONGEST_NAME:
        half = (_LONGEST_NAME - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def as_png(figure: Any) -> bytes:
    """Return the figure as a PNG file."""
    return _saved(figure, format="png", dpi=130, metadata={"Software": MADE_BY})


def as_svg(figure: Any) -> str:
    """Return the figure as an SVG file."""
    return _saved(figure, format="svg", metadata={"Creator": MADE_BY, "Date": None}).decode()


def _saved(figure: Any, **options: Any) -> bytes:
    import matplotlib as mpl

    content = io.BytesIO()
    with mpl.rc_context(FONTS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        figure.savefig(content, **options)
    return content.getvalue()


def usual_weight(points: int) -> float:
    """Return the weight of the past with which a curve of so many points is legible; 0 for a few points."""
    return max(0.0, 1 - 2 / (1 + points / _SHARE))


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average, without a bias towards 0 at the beginning.

    Values that are not finite stay as they are, and do not count in those after them.

    Args:
        values: At equal distances.
        weight: Of the past, from 0, which changes nothing, to below 1.
    """
    average, total = 0.0, 0.0
    result = []
    for value in values:
        if math.isfinite(value):
            average = weight * average + (1 - weight) * value
            total = weight * total + (1 - weight)
            result.append(average / total)
        else:
            result.append(value)
    return result
