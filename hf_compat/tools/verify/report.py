"""The result of a comparison as a table in the terminal, a JSON file and a page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from hf_compat.tools.plot.output import MADE_BY, inline_svg, page, table
from hf_compat.tools.verify.comparing import Comparison, Row
from hf_compat.tools.verify.record import Moment, Record

__all__ = ["Report", "as_json", "as_page", "as_table", "summary", "verdict"]

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
