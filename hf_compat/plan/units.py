"""Conversions between batches, windows, update steps and epochs.

A *window* is the batches accumulated for one update step; the last window of an epoch may be short and still steps.
"""

from __future__ import annotations

import math

__all__ = ["epochs_for", "update_steps_for", "update_steps_per_epoch"]


def update_steps_per_epoch(batches: int, accumulate: int) -> int:
    """Return the update steps of an epoch of ``batches`` batches, with ``accumulate`` batches per window."""
    return max(math.ceil(batches / accumulate), 1)


def update_steps_for(epochs: float, steps_per_epoch: int) -> int:
    """Return the update steps of ``epochs`` epochs, rounded up."""
    return math.ceil(epochs * steps_per_epoch)


def epochs_for(update_steps: int, steps_per_epoch: int) -> int:
    """Return the epochs that ``update_steps`` update steps need, rounded up."""
    return math.ceil(update_steps / steps_per_epoch)
