"""Draws two runs on top of each other, the verdict above and their differences below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_compat.tools.plot.drawing import FONTS, plain_axes, style_of
from hf_compat.tools.verify.comparing import Comparison
from hf_compat.tools.verify.record import Moment, Record
from hf_compat.tools.verify.report import Report, verdict

__all__ = ["draw_comparison"]

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
