"""Learning-rate curves: the factor on the initial learning rate at each update step.

Plain functions of the update step and keywords, so that schedules made of them can be pickled and, bound with
``functools.partial``, give a ``LambdaLR`` the same state as transformers' do.

References:
    Same numbers as transformers ``optimization.py``, the order of every floating-point operation included.
"""

from __future__ import annotations

import math

__all__ = [
    "RAMPS",
    "constant",
    "constant_with_warmup",
    "cosine",
    "cosine_early",
    "cosine_with_restarts",
    "inverse_sqrt",
    "linear",
    "polynomial",
    "warmup_stable_decay",
]

RAMPS = ("linear", "cosine", "1-sqrt")
"""Shapes of the ramps of :func:`warmup_stable_decay`."""


def _rise(step: int, warmup_steps: int) -> float:
    return float(step) / float(max(1, warmup_steps))


def _progress(step: int, warmup_steps: int, training_steps: int) -> float:
    """Return how far the steps after warm-up have come, 0 to 1 and beyond."""
    return float(step - warmup_steps) / float(max(1, training_steps - warmup_steps))


def _half_wave(progress: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * float(cycles) * 2.0 * progress))


def _above(floor: float, factor: float) -> float:
    return factor * (1 - floor) + floor


def constant(step: int) -> float:
    """Return 1."""
    return 1


def constant_with_warmup(step: int, *, warmup_steps: int) -> float:
    """Return a factor that rises to 1 and stays there."""
    return _rise(step, warmup_steps) if step < warmup_steps else 1.0


def linear(step: int, *, warmup_steps: int, training_steps: int) -> float:
    """Return a factor that rises to 1, then falls to 0 on a straight line."""
    if step < warmup_steps:
        return _rise(step, warmup_steps)
    return max(0.0, float(training_steps - step) / float(max(1, training_steps - warmup_steps)))


def cosine(step: int, *, warmup_steps: int, training_steps: int, cycles: float, floor: float = 0.0) -> float:
    """Return a factor that rises to 1, then swings between 1 and ``floor`` on ``cycles`` cosine waves."""
    if step < warmup_steps:
        return _rise(step, warmup_steps)
    return max(0.0, _above(floor, _half_wave(_progress(step, warmup_steps, training_steps), cycles)))


def cosine_with_restarts(step: int, *, warmup_steps: int, training_steps: int, cycles: float) -> float:
    """Return a factor that rises to 1, then falls to 0 on half a cosine wave, ``cycles`` times over."""
    if step < warmup_steps:
        return _rise(step, warmup_steps)
    progress = _progress(step, warmup_steps, training_steps)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(cycles) * progress) % 1.0))))


def cosine_early(
    step: int, *, warmup_steps: int, training_steps: int, cycles: float, floor: float, start: float | None
) -> float:
    """Return :func:`cosine` one update step early, so that no step has a learning rate of 0.

    Args:
        step: Update steps done.
        warmup_steps: Update steps of the rise.
        training_steps: Update steps of the whole run.
        cycles: Cosine waves after the rise.
        floor: Smallest factor after the rise.
        start: First factor of the rise. Default: ``1 / warmup_steps``.
    """
    if step < warmup_steps:
        if start is None:
            return (step + 1.0) / max(1.0, warmup_steps)
        return float(start) + (1.0 - float(start)) * float(step) / max(1, warmup_steps - 1.0)
    progress = (step - warmup_steps + 1.0) / max(1.0, training_steps - warmup_steps)
    return max(0.0, _above(floor, _half_wave(progress, cycles)))


def polynomial(
    step: int, *, warmup_steps: int, training_steps: int, initial: float, final: float, power: float
) -> float:
    """Return a factor that rises to 1, then falls so that the learning rate goes from ``initial`` to ``final``."""
    if step < warmup_steps:
        return _rise(step, warmup_steps)
    if step > training_steps:
        return final / initial
    remaining = 1 - (step - warmup_steps) / max(1, training_steps - warmup_steps)
    rate: float = (initial - final) * remaining**power + final
    return rate / initial


def inverse_sqrt(step: int, *, warmup_steps: int, timescale: int) -> float:
    """Return a factor that rises to 1, then falls with the root of the update step, counted in ``timescale``."""
    if step < warmup_steps:
        return _rise(step, warmup_steps)
    return 1.0 / math.sqrt((step + (timescale - warmup_steps)) / timescale)


def _ramp_up(shape: str, progress: float) -> float:
    if shape == "linear":
        return progress
    if shape == "cosine":
        return 0.5 * (1.0 - math.cos(math.pi * progress))
    return 1.0 - math.sqrt(1.0 - progress)


def _ramp_down(shape: str, progress: float, cycles: float) -> float:
    if shape == "linear":
        return 1.0 - progress
    if shape == "cosine":
        return _half_wave(progress, cycles)
    return 1.0 - math.sqrt(progress)


def warmup_stable_decay(
    step: int,
    *,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    warmup_type: str,
    decay_type: str,
    floor: float,
    cycles: float,
) -> float:
    """Return a factor that rises from ``floor`` to 1, stays there, and falls back to ``floor``.

    Args:
        step: Update steps done.
        warmup_steps: Update steps of the rise.
        stable_steps: Update steps at 1.
        decay_steps: Update steps of the fall.
        warmup_type: Shape of the rise, one of :data:`RAMPS`.
        decay_type: Shape of the fall, one of :data:`RAMPS`.
        floor: Smallest factor.
        cycles: Cosine waves of a fall that is one.
    """
    if step < warmup_steps:
        return max(0.0, _above(floor, _ramp_up(warmup_type, _rise(step, warmup_steps))))
    into_decay = step - warmup_steps - stable_steps
    if into_decay < 0:
        return 1.0
    if into_decay < decay_steps:
        return max(0.0, _above(floor, _ramp_down(decay_type, float(into_decay) / float(max(1, decay_steps)), cycles)))
    return floor
