"""Draws two runs on top of each other, and their differences below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_compat.tools.plot.drawing import FONTS, plain_axes, style_of
from hf_compat.tools.verify.comparing import Comparison
from hf_compat.tools.verify.record import Moment, Record

__all__ = ["draw_comparison"]

_MOST_METRICS = 4
_THEIRS: dict[str, Any] = {"color": "#e0963c", "linewidth": 4.5, "alpha": 0.75, "solid_capstyle": "round"}
_OURS: dict[str, Any] = {"color": "#0b3d6b", "linewidth": 1.4, "linestyle": (0, (4, 2)), "marker": "o", "markersize": 3}
_LOWEST = 1e-18
"""Drawn for no difference at all: a logarithmic axis has no 0."""


def draw_comparison(upstream: Record, ours: Record, comparison: Comparison) -> Any:
    """Return a figure of two records: a panel for each quantity, and one with all relative differences."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = [name for name in ("loss", "gradient norm", "learning rate") if name in upstream.quantities]
    panels = [(name, upstream.quantities[name], ours.quantities.get(name, {})) for name in drawn]
    metrics = [name for name in upstream.metrics if f"metric {name}" in comparison.curves][:_MOST_METRICS]
    panels += [(name, upstream.metrics[name], ours.metrics.get(name, {})) for name in metrics]
    order = _order(upstream, ours)
    columns = 2 if len(panels) != 3 else 3
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(FONTS):
        figure = Figure(figsize=(10.5, 2.5 * rows + 3.4), layout="constrained", facecolor="white")
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1.0] * rows, 1.15])
        for index, (name, theirs, own) in enumerate(panels):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            plain_axes(axes, name if name in metrics else name.capitalize())
            for values, label, look in ((theirs, "transformers", _THEIRS), (own, "hf_compat", _OURS)):
                points = sorted((order[moment], value) for moment, value in values.items())
                (line,) = axes.plot(*_columns(points), label=label, **look)
                if len(points) == 1:
                    line.set_marker("o")
            if index == 0:
                axes.legend(fontsize=8)
        _draw_differences(figure.add_subplot(grid[rows, :]), comparison, [*drawn, "weights"], order)
    return figure


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


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value if math.isfinite(value) else math.nan for _, value in points]


def _draw_differences(axes: Any, comparison: Comparison, names: Sequence[str], order: Mapping[Moment, int]) -> None:
    plain_axes(axes, "Relative difference")
    axes.set_yscale("log")
    largest = comparison.tolerance
    for index, name in enumerate(names):
        curve = comparison.curves.get(name, {})
        points = sorted((order[moment], value) for moment, value in curve.items() if moment in order)
        shown = [(step, max(value, _LOWEST)) for step, value in points if math.isfinite(value)]
        largest = max([largest, *(value for _, value in shown)])
        style = style_of(index)
        look = {"color": style.colour, "linestyle": style.line, "marker": style.marker, "markersize": 4}
        axes.plot(*_columns(shown), label=name, markerfacecolor="white", linewidth=1.3, **look)
    axes.axhline(comparison.tolerance, color="#b3261e", linewidth=1.2, linestyle=(0, (8, 3)))
    axes.text(1.0, comparison.tolerance, " tolerance", color="#b3261e", fontsize=8, va="bottom", ha="right",
              transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_ylim(_LOWEST / 8, largest * 30)
    ticks = [_LOWEST, *(10.0**power for power in range(-15, math.ceil(math.log10(largest * 10)) + 1, 3))]
    axes.set_yticks(ticks, ["none", *(f"{tick:.0e}" for tick in ticks[1:])])
    axes.minorticks_off()
    axes.legend(fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
