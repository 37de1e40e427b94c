"""How batches, windows, update steps and epochs follow from one another.

A *window* is the batches accumulated for one update step; the last window of an epoch may be short and still steps.
"""

from __future__ import annotations

import math

__all__ = ["epochs_for", "update_steps_for", "update_steps_per_epoch"]


def update_steps_per_epoch(batches: int, accumulate: int) -> int:
    """Return how many update steps one pass over ``batches`` batches makes with ``accumulate`` batches a window."""
    return max(math.ceil(batches / accumulate), 1)


def update_steps_for(epochs: float, steps_per_epoch: int) -> int:
    """Return how many update steps ``epochs`` epochs make; a fraction of an epoch is rounded up to a step."""
    return math.ceil(epochs * steps_per_epoch)


def epochs_for(update_steps: int, steps_per_epoch: int) -> int:
    """Return in how many epochs, the last perhaps cut short, ``update_steps`` update steps are made."""
    return math.ceil(update_steps / steps_per_epoch)
