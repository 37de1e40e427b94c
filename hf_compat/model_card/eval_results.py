"""Results of a run in a model card: a row per evaluation, and the final results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["evaluation_rows", "final_results", "rounded", "table"]

_NOT_RESULTS = (
    "epoch",
    "eval_jit_compilation_time",
    "eval_runtime",
    "eval_samples_per_second",
    "eval_steps_per_second",
    "step",
    "total_flos",
)
NO_LOSS_YET = "No log"


def _title(metric: str) -> str:
    return " ".join(word.capitalize() for word in metric.removeprefix("eval_").split("_"))


def _is_evaluation(entry: Mapping[str, Any]) -> bool:
    return any(name.startswith("eval_") for name in entry)


def _metrics(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {_title(name): value for name, value in entry.items() if name not in _NOT_RESULTS}


def evaluation_rows(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each evaluation during training: last training loss, epoch, update step, metrics."""
    rows: list[dict[str, Any]] = []
    training_loss: Any = NO_LOSS_YET
    for entry in log_history:
        if "train_runtime" in entry:
            return rows
        training_loss = entry.get("loss", training_loss)
        if _is_evaluation(entry):
            metrics = _metrics(entry)
            row = {"Training Loss": training_loss, "Epoch": entry.get("epoch"), "Step": entry.get("step")}
            if "Loss" in metrics:
                row["Validation Loss"] = metrics.pop("Loss")
            rows.append({**row, **metrics})
    return []  # the run did not finish


def final_results(log_history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the metrics of the last evaluation, or None."""
    last = next((entry for entry in reversed(log_history) if _is_evaluation(entry)), None)
    return None if last is None else _metrics(last)


def rounded(value: object) -> str:
    """Return ``value`` as text with at most four decimals; an empty string for None."""
    if value is None:
        return ""
    text = str(value)
    return f"{value:.4f}" if isinstance(value, float) and len(text.partition(".")[2]) > 4 else text


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ``rows`` as a Markdown table with a column for each name in any row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([rounded(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join(f":{'-' * width}:" for width in widths) + "|", *lines[1:]])
