"""The result of a comparison as a table in the terminal, a JSON file and a page."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from hf_compat.tools.plot.drawing import FONTS, MADE_BY, inline_svg, page, plain_axes, style_of, table
from hf_compat.tools.verify.comparing import Comparison, Moment, Record, Row

_HEADINGS = ("quantity", "transformers", "hf_compat", "largest difference", "tolerance", "first at", "verdict")


@dataclass(frozen=True, slots=True)
class Report:
    """Content of a report."""

    command: str
    """The script with its arguments."""
    steps: int
    """Update steps after which each ``train`` call was stopped."""
    upstream: Record
    ours: Record
    comparison: Comparison
    noise: Comparison | None = None
    """Two runs of transformers' Trainer against each other."""

    @property
    def precision(self) -> str:
        """The precision of the run, such as ``"fp32"``."""
        return str(self.upstream.facts.get("precision"))


def summary(report: Report) -> str:
    """Return the result in a sentence or two."""
    note = "" if report.comparison.is_equal else _weights_note(report.comparison)
    return f"{verdict(report)} {note}".rstrip()


def verdict(report: Report) -> str:
    """Return the result in one sentence."""
    comparison = report.comparison
    count = len(report.upstream.steps)
    steps = f"{count} update step{'s' * (count != 1)}"
    if comparison.is_identical:
        return f"Equal to the last bit in {steps}."
    stated = f"the tolerance of {comparison.tolerance:g} ({report.precision})"
    if comparison.is_equal:
        rows = [row for row in comparison.rows if row.verdict == "within tolerance"]
        worst = max(rows, key=lambda row: row.difference or 0.0)
        return f"Equal within {stated} in {steps}; the largest difference is {worst.difference:.2g}, in {worst.name}."
    first = comparison.first
    where = "" if first is None or first.first is None else f", first {_at(first.first)}"
    name = "" if first is None else f": {first.name}"
    return f"Differs by more than {stated}{name}{where}."


def _weights_note(comparison: Comparison) -> str:
    weights = comparison.weights
    if weights.module is None or weights.first is None:
        return ""
    if weights.first == (1, 0):
        return (
            f"The weights of module `{weights.module}` differ before the first step: if the script draws them at "
            "random, call `set_seed(42)` before it builds the model, or pass a `model_init`."
        )
    return f"The first weights that differ are those of module `{weights.module}`, after step {weights.first[1]}."


def _at(moment: Moment | None) -> str:
    if moment is None:
        return ""
    return f"at step {moment[1]}" if moment[0] <= 1 else f"at step {moment[1]} of train call {moment[0]}"


def _rows(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells; with a column for the noise if it was measured."""
    noise = None if report.noise is None else {row.name: row for row in report.noise.rows}
    headings = _HEADINGS if noise is None else (*_HEADINGS[:4], "noise", *_HEADINGS[4:])
    cells = []
    for row in report.comparison.rows:
        first, last = (row.name, row.upstream, row.ours, _number(row.difference)), row.verdict
        middle = () if noise is None else (_number(noise[row.name].difference) if row.name in noise else "",)
        cells.append((*first, *middle, _number(row.tolerance), _at(row.first), last))
    return headings, cells


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else "only in one"


def as_table(report: Report) -> str:
    """Return the comparison as an aligned table, with the result below it."""
    headings, rows = _rows(report)
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(headings, widths, strict=True)).rstrip()]
    for cells, row in zip(rows, report.comparison.rows, strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        lines += [f"  {row.note}"] * bool(row.note)
    return "\n".join([*lines, "", *_sentences(report)])


def _sentences(report: Report) -> list[str]:
    sentences = [summary(report)]
    if report.noise is not None:
        largest = max((row.difference or 0.0 for row in report.noise.rows), default=0.0)
        told = "not at all" if report.noise.is_identical else f"by up to {largest:.2g}"
        sentences.append(f"Noise: two runs with transformers' Trainer differ {told} from each other.")
    return sentences


def as_json(report: Report) -> str:
    """Return everything as JSON; numbers that are not finite are text."""
    comparison = report.comparison
    content = {
        "made_by": MADE_BY,
        "summary": summary(report),
        "equal": comparison.is_equal,
        "identical": comparison.is_identical,
        "command": report.command,
        "steps": report.steps,
        "precision": report.precision,
        "tolerance": comparison.tolerance,
        "environment": _environment(report),
        "rows": [_row(row) for row in comparison.rows],
        "noise": None if report.noise is None else [_row(row) for row in report.noise.rows],
        "weights": {name: value for name, value in asdict(comparison.weights).items() if name != "by_moment"},
        "curves": {
            "transformers": _curves(report.upstream.quantities),
            "hf_compat": _curves(report.ours.quantities),
            "difference": _curves(comparison.curves),
        },
        "arguments": {"transformers": report.upstream.facts["arguments"], "hf_compat": report.ours.facts["arguments"]},
    }
    return json.dumps(_finite(content), indent=2, default=str, allow_nan=False) + "\n"


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "first": None if row.first is None else {"train": row.first[0], "step": row.first[1]}}


def _curves(named: Mapping[str, Mapping[Moment, float]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"train": moment[0], "step": moment[1], "value": value} for moment, value in sorted(values.items())]
        for name, values in named.items()
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _environment(report: Report) -> dict[str, str]:
    import hf_compat

    found = {name: str(value) for name, value in report.upstream.facts["environment"].items()}
    return {"hf_compat": hf_compat.__version__, **found, "trainer": str(report.upstream.facts["class"])}


def as_page(report: Report, svg: str) -> str:
    """Return a page that can be sent to others: result, curves, differences, environment, arguments."""
    comparison = report.comparison
    headings, rows = _rows(report)
    notes = [f"<li>{escape(row.name)}: {_marked_up(row.note)}</li>" for row in comparison.rows if row.note]
    marked = [row.verdict == "different" for row in comparison.rows]
    kind, word = ("equal", "Equal") if comparison.is_equal else ("different", "Different")
    result, *more = _sentences(report)
    note = (
        f"Each train call was stopped after {report.steps} update steps. Tolerance for {report.precision}: "
        f"{comparison.tolerance:g}, relative to the larger number (for weights, to the largest weight of their "
        "parameter). Values are those at the first difference, or at the last step."
    )
    parts = [
        f'<h1><span class="{kind}">{word}</span>: transformers and hf_compat</h1>',
        f"<p><code>{escape(report.command)}</code></p>",
        f'<p class="{kind}"><strong>{_marked_up(result)}</strong></p>',
        *(f"<p>{_marked_up(sentence)}</p>" for sentence in more),
        inline_svg(svg, f"Curves of both runs. {result}"),
        "<h2>Differences</h2>",
        f'<p class="note">{escape(note)}</p>',
        table(headings, rows, marked=marked),
        *(["<ul>", *notes, "</ul>"] if notes else []),
        "<h2>Environment</h2>",
        table(("", "value"), list(_environment(report).items()), text_columns=2),
        "<h2>Arguments</h2>",
        _arguments(report),
    ]
    return page(f"{word}: {report.command}", "\n".join(parts))


def _marked_up(text: str) -> str:
    """Return ``text`` for the page, names in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _arguments(report: Report) -> str:
    theirs, own = (dict(record.facts["arguments"]) for record in (report.upstream, report.ours))
    rows: Sequence[tuple[str, str, str]] = [
        (name, _short(theirs.get(name, "-")), _short(own.get(name, "-"))) for name in dict.fromkeys([*theirs, *own])
    ]
    content = table(("field", "transformers", "hf_compat"), rows, text_columns=3)
    return f"<details><summary>{len(rows)} fields of the first Trainer's arguments</summary>\n{content}\n</details>"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:199]}…"


# Draws two runs on top of each other, the verdict above and their differences below.


_DRAWN = ("loss", "gradient norm", "learning rate")
_MOST_METRICS = 4
_THEIRS: dict[str, Any] = {"color": "#e0963c", "linewidth": 4.5, "alpha": 0.75, "solid_capstyle": "round"}
_OURS: dict[str, Any] = {"color": "#0b3d6b", "linewidth": 1.4, "linestyle": (0, (4, 2)), "marker": "o", "markersize": 3}
_EQUAL, _DIFFERENT = "#1b7f4d", "#b3261e"
_LOWEST = 1e-18
"""Drawn for no difference at all: a logarithmic axis has no 0."""
_LONGEST_LINE = 115
"""Characters that fit into the width of the figure."""


def draw_comparison(report: Report) -> Any:
    """Return a figure of two runs: the verdict, a panel for each quantity, and one with all relative differences.

    A quantity of which neither run has a number gets no panel.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = list(_panels(report))
    order = _order(report.upstream, report.ours)
    columns = {1: 1, 3: 3}.get(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(FONTS):
        figure = Figure(figsize=(10.5, 2.5 * rows + 3.7), layout="constrained", facecolor="white")
        told = textwrap.fill(verdict(report).replace("$", r"\$"), _LONGEST_LINE)
        colour = _EQUAL if report.comparison.is_equal else _DIFFERENT
        figure.suptitle(told, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=colour)
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1.0] * rows, 1.15])
        for index, (title, theirs, own) in enumerate(panels):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            plain_axes(axes, title)
            for values, label, look in ((theirs, "transformers", _THEIRS), (own, "hf_compat", _OURS)):
                points = sorted((order[moment], value) for moment, value in values.items())
                (line,) = axes.plot(*_columns(points), label=label, **look)
                if len(points) == 1:
                    line.set_marker("o")
            axes.set_xlim(*_limits(order))
            if index == 0:
                axes.legend(fontsize=8)
        _draw_differences(figure.add_subplot(grid[rows, :]), report.comparison, order)
    return figure


def _panels(report: Report) -> Iterator[tuple[str, Mapping[Moment, float], Mapping[Moment, float]]]:
    """Yield the title of each panel with the values of transformers and of hf_compat, at least one of them finite."""
    upstream, ours = report.upstream, report.ours
    metrics = [name.removeprefix("metric ") for name in report.comparison.curves if name.startswith("metric ")]
    found = [(name.capitalize(), upstream.quantities.get(name, {}), ours.quantities.get(name, {})) for name in _DRAWN]
    found += [(name, upstream.metrics.get(name, {}), ours.metrics.get(name, {})) for name in metrics[:_MOST_METRICS]]
    for title, theirs, own in found:
        if any(map(math.isfinite, (*theirs.values(), *own.values()))):
            yield title, theirs, own


def _order(*records: Record) -> dict[Moment, int]:
    """Return the place of each moment on the axis: its update step, further ``train`` calls behind one another."""
    moments = {
        moment
        for record in records
        for values in (*record.quantities.values(), *record.metrics.values())
        for moment in values
    }
    moments |= {moment for record in records for moment, _ in record.weights}
    order: dict[Moment, int] = {}
    behind = 0
    for train in sorted({train for train, _ in moments}):
        steps = [step for number, step in moments if number == train]
        order |= {(train, step): behind + step for step in steps}
        behind += max(steps)
    return order


def _limits(order: Mapping[Moment, int]) -> tuple[float, float]:
    """Return the ends of the axis of update steps, the same for all panels, with two whole steps between them."""
    low, high = min(order.values(), default=0), max(order.values(), default=0)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value if math.isfinite(value) else math.nan for _, value in points]


def _draw_differences(axes: Any, comparison: Comparison, order: Mapping[Moment, int]) -> None:
    plain_axes(axes, "Relative difference")
    axes.set_yscale("log")
    largest = comparison.tolerance
    for index, name in enumerate((*_DRAWN, "weights")):
        curve = comparison.curves.get(name, {})
        points = sorted((order[moment], value) for moment, value in curve.items() if moment in order)
        shown = [(step, max(value, _LOWEST)) for step, value in points if math.isfinite(value)]
        if not shown:
            continue
        largest = max([largest, *(value for _, value in shown)])
        style = style_of(index)
        look = {"color": style.colour, "linestyle": style.line, "marker": style.marker, "markersize": 4}
        axes.plot(*_columns(shown), label=name, markerfacecolor="white", linewidth=1.3, **look)
    axes.axhline(comparison.tolerance, color=_DIFFERENT, linewidth=1.2, linestyle=(0, (8, 3)))
    axes.text(1.0, comparison.tolerance, " tolerance", color=_DIFFERENT, fontsize=8, va="bottom", ha="right",
              transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xlim(*_limits(order))
    axes.set_ylim(_LOWEST / 8, largest * 30)
    ticks = [_LOWEST, *(10.0**power for power in range(-15, math.ceil(math.log10(largest * 10)) + 1, 3))]
    axes.set_yticks(ticks, ["none", *(f"{tick:.0e}" for tick in ticks[1:])])
    axes.minorticks_off()
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
