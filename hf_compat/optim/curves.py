"""Learning-rate curves: the multiplier of the initial learning rate at each update step.

Module-level functions of the update step, bound with ``functools.partial``, so that schedules can be pickled and the
state dict of a ``LambdaLR`` is the same as that of transformers'.

References:
    Same values as transformers ``optimization.py``, with the same order of floating-point operations.
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
"""Warm-up and decay types of :func:`warmup_stable_decay`."""


def _warmup(step: int, warmup_steps: int) -> float:
    return float(step) / float(max(1, warmup_steps))


def _progress(step: int, warmup_steps: int, training_steps: int) -> float:
    """Return the fraction of the steps after warm-up that are done; above 1 after the last."""
    return float(step - warmup_steps) / float(max(1, training_steps - warmup_steps))


def _cosine_wave(progress: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * float(cycles) * 2.0 * progress))


def _scale_to_floor(floor: float, factor: float) -> float:
    return factor * (1 - floor) + floor


def constant(step: int) -> float:
    """Return 1."""
    return 1


def constant_with_warmup(step: int, *, warmup_steps: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a constant 1."""
    return _warmup(step, warmup_steps) if step < warmup_steps else 1.0


def linear(step: int, *, warmup_steps: int, training_steps: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a linear decay to 0."""
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
    return max(0.0, float(training_steps - step) / float(max(1, training_steps - warmup_steps)))


def cosine(step: int, *, warmup_steps: int, training_steps: int, cycles: float, floor: float = 0.0) -> float:
    """Return the multiplier of a linear warm-up to 1, then ``cycles`` cosine waves between 1 and ``floor``."""
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
    return max(0.0, _scale_to_floor(floor, _cosine_wave(_progress(step, warmup_steps, training_steps), cycles)))


def cosine_with_restarts(step: int, *, warmup_steps: int, training_steps: int, cycles: float) -> float:
    """Return the multiplier of a linear warm-up to 1, then ``cycles`` cosine decays to 0, each restarting at 1."""
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
    progress = _progress(step, warmup_steps, training_steps)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(cycles) * progress) % 1.0))))


def cosine_early(
    step: int, *, warmup_steps: int, training_steps: int, cycles: float, floor: float, start: float | None
) -> float:
    """Return :func:`cosine` shifted by one update step, so that the learning rate is never 0.

    Args:
        step: Update steps done.
        warmup_steps: Update steps of warm-up.
        training_steps: Update steps of the run.
        cycles: Cosine waves after warm-up.
        floor: Smallest multiplier after warm-up.
        start: First multiplier of warm-up. Default: ``1 / warmup_steps``.
    """
    if step < warmup_steps:
        if start is None:
            return (step + 1.0) / max(1.0, warmup_steps)
        return float(start) + (1.0 - float(start)) * float(step) / max(1, warmup_steps - 1.0)
    progress = (step - warmup_steps + 1.0) / max(1.0, training_steps - warmup_steps)
    return max(0.0, _scale_to_floor(floor, _cosine_wave(progress, cycles)))


def polynomial(
    step: int, *, warmup_steps: int, training_steps: int, initial: float, final: float, power: float
) -> float:
    """Return the multiplier of a linear warm-up to 1, then a polynomial decay from ``initial`` to ``final``."""
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
    if step > training_steps:
        return final / initial
    remaining = 1 - (step - warmup_steps) / max(1, training_steps - warmup_steps)
    rate: float = (initial - final) * remaining**power + final
    return rate / initial


def inverse_sqrt(step: int, *, warmup_steps: int, timescale: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a decay with the inverse square root of the step."""
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
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
        return _cosine_wave(progress, cycles)
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
    """Return the multiplier of a warm-up from ``floor`` to 1, a constant phase, and a decay to ``floor``.

    Args:
        step: Update steps done.
        warmup_steps: Update steps of warm-up.
        stable_steps: Update steps of the constant phase.
        decay_steps: Update steps of the decay.
        warmup_type: One of :data:`RAMPS`.
        decay_type: One of :data:`RAMPS`.
        floor: Smallest multiplier.
        cycles: Cosine waves of a ``"cosine"`` decay.
    """
    if step < warmup_steps:
        return max(0.0, _scale_to_floor(floor, _ramp_up(warmup_type, _warmup(step, warmup_steps))))
    into_decay = step - warmup_steps - stable_steps
    if into_decay < 0:
        return 1.0
    if into_decay < decay_steps:
        return max(
            0.0, _scale_to_floor(floor, _ramp_down(decay_type, float(into_decay) / float(max(1, decay_steps)), cycles))
        )
    return floor
