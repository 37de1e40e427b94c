"""The steps at which a run was resumed, worked out from its logs: a state file does not hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

__all__ = ["resumed_steps"]

_ROUNDING = 6e-5
"""Largest error of a logged loss: older releases round to four digits."""


def resumed_steps(logs: Sequence[Mapping[str, Any]], last_step: int) -> Iterator[int]:
    """Yield the update steps from which a run was resumed, as far as its logs show.

    A run that ends logs ``train_loss``: the losses since it was started or resumed, added up and divided by the update
    steps since then; in older releases by all update steps. The steps at the end of the history whose losses make up
    that number are those since then. An end that is followed by further logs was resumed from at the latest there. An
    interrupted run that never ended shows nothing.

    Args:
        logs: The ``log_history``.
        last_step: Update steps done.
    """
    losses: list[tuple[int, float]] = []
    begun = 0
    for index, log in enumerate(logs):
        step, loss, summary = log.get("step"), log.get("loss"), log.get("train_loss")
        if isinstance(step, int) and isinstance(loss, int | float):
            losses.append((step, float(loss)))
        if not (isinstance(step, int) and isinstance(summary, int | float)):
            continue
        start = _start(losses, step, float(summary))
        if start is not None and begun < start < step:
            yield start
        if index + 1 < len(logs) and step < last_step and "loss" in logs[index + 1]:
            yield step
            begun = step


def _start(losses: Sequence[tuple[int, float]], last_step: int, mean: float) -> int | None:
    """Return the update step since which the losses make up ``mean``; None if they do not show it."""
    if not losses or losses[-1][0] != last_step:  # steps after the last log are in the mean, but not in the logs
        return None
    parts = _parts(losses)
    if not all(math.isfinite(loss) and loss > 0 and steps > 0 for steps, loss in parts):
        return None
    sums = list(accumulate(steps * loss for steps, loss in reversed(parts)))
    counts = list(accumulate(steps for steps, _ in reversed(parts)))
    if abs(sums[-1] - mean * last_step) <= _ROUNDING * last_step:
        return 0
    # In newer releases the mean is of the steps since then. A resumed run's checkpoint is mostly at a log.
    since = [last_step - count for total, count in zip(sums, counts, strict=True) if _equal(total / count, mean)]
    return since[0] if len(since) == 1 else _start_of_sum(parts, last_step, mean * last_step)


def _parts(losses: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the number of steps and the mean loss of each log."""
    before = [0, *(step for step, _ in losses[:-1])]
    return [(step - previous, loss) for (step, loss), previous in zip(losses, before, strict=True)]


def _equal(mean: float, summary: float) -> bool:
    return abs(mean - summary) <= _ROUNDING


def _start_of_sum(parts: Sequence[tuple[int, float]], last_step: int, total: float) -> int | None:
    """Return the update step since which the losses add up to ``total``, as in older releases."""
    rest, doubt, step = total, 0.0, last_step
    for steps, loss in reversed(parts):
        doubt += _ROUNDING * steps
        if rest - loss * steps <= doubt:
            return _whole(step - rest / loss, doubt / loss)
        rest -= loss * steps
        step -= steps
    return None


def _whole(step: float, doubt: float) -> int | None:
    """Return the whole step that ``step`` is known to be; None if it may be several, or none."""
    if not doubt < 0.5:
        return None
    nearest = round(step)
    return nearest if abs(step - nearest) <= doubt + 1e-3 else None
