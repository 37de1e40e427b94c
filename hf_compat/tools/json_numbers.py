"""Numbers in JSON files, which may hold anything in their place."""

from __future__ import annotations

import math

__all__ = ["number", "whole_number"]

_MOST = 2**63
"""Larger numbers of steps are those of no run."""


def number(value: object) -> float | None:
    """Return ``value`` if it is a number that a float can hold, which may be infinite or NaN; else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if isinstance(value, float) or abs(value) < _MOST else None


def whole_number(value: object) -> int | None:
    """Return ``value`` as an integer if it is a finite number of a possible size; else None."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and abs(found) < _MOST else None
