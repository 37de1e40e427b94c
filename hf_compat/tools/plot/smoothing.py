"""Smoothed curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["smoothed", "usual_weight"]

_SHARE = 25
"""A curve's number of points over those that count most in a smoothed value."""


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
