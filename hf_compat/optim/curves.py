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


def constant_with_warmup(step: int, *, num_warmup_steps: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a constant 1."""
    return _warmup(step, num_warmup_steps) if step < num_warmup_steps else 1.0


def linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a linear decay to 0."""
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    return max(0.0, float(num_training_steps - step) / float(max(1, num_training_steps - num_warmup_steps)))


def cosine(
    step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: float, min_lr_rate: float = 0.0
) -> float:
    """Return the multiplier of a linear warm-up to 1, then of ``num_cycles`` cosine waves from 1 to ``min_lr_rate``."""
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    return max(0.0, _scale_to_floor(min_lr_rate, _cosine_wave(progress, num_cycles)))


def cosine_with_restarts(step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: float) -> float:
    """Return the multiplier of a linear warm-up to 1, then ``num_cycles`` cosine decays to 0, each restarting at 1."""
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(num_cycles) * progress) % 1.0))))


def cosine_early(
    step: int,
    *,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float,
    min_lr_rate: float,
    warmup_lr_rate: float | None,
) -> float:
    """Return :func:`cosine` shifted by one update step, so that the learning rate is never 0.

    Args:
        step: Update steps done.
        num_warmup_steps: Update steps of warm-up.
        num_training_steps: Update steps of the run.
        num_cycles: Cosine waves after warm-up.
        min_lr_rate: Smallest multiplier after warm-up.
        warmup_lr_rate: First multiplier of warm-up. Default: ``1 / num_warmup_steps``.
    """
    if step < num_warmup_steps:
        if warmup_lr_rate is None:
            return (step + 1.0) / max(1.0, num_warmup_steps)
        return float(warmup_lr_rate) + (1.0 - float(warmup_lr_rate)) * float(step) / max(1, num_warmup_steps - 1.0)
    progress = (step - num_warmup_steps + 1.0) / max(1.0, num_training_steps - num_warmup_steps)
    return max(0.0, _scale_to_floor(min_lr_rate, _cosine_wave(progress, num_cycles)))


def polynomial(
    step: int, *, num_warmup_steps: int, num_training_steps: int, lr_init: float, lr_end: float, power: float
) -> float:
    """Return the multiplier of a linear warm-up to 1, then a polynomial decay from ``lr_init`` to ``lr_end``."""
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    if step > num_training_steps:
        return lr_end / lr_init
    remaining = 1 - (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
    rate: float = (lr_init - lr_end) * remaining**power + lr_end
    return rate / lr_init


def inverse_sqrt(step: int, *, num_warmup_steps: int, timescale: int) -> float:
    """Return the multiplier of a linear warm-up to 1, then a decay with the inverse square root of the step."""
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    return 1.0 / math.sqrt((step + (timescale - num_warmup_steps)) / timescale)


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
    num_warmup_steps: int,
    num_stable_steps: int,
    num_decay_steps: int,
    warmup_type: str,
    decay_type: str,
    min_lr_ratio: float,
    num_cycles: float,
) -> float:
    """Return the multiplier of a warm-up from ``min_lr_ratio`` to 1, a constant phase, and a decay to ``min_lr_ratio``.

    Args:
        step: Update steps done.
        num_warmup_steps: Update steps of warm-up.
        num_stable_steps: Update steps of the constant phase.
        num_decay_steps: Update steps of the decay.
        warmup_type: One of :data:`RAMPS`.
        decay_type: One of :data:`RAMPS`.
        min_lr_ratio: Smallest multiplier.
        num_cycles: Cosine waves of a ``"cosine"`` decay.
    """
    if step < num_warmup_steps:
        return max(0.0, _scale_to_floor(min_lr_ratio, _ramp_up(warmup_type, _warmup(step, num_warmup_steps))))
    into_decay = step - num_warmup_steps - num_stable_steps
    if into_decay < 0:
        return 1.0
    if into_decay < num_decay_steps:
        progress = float(into_decay) / float(max(1, num_decay_steps))
        return max(0.0, _scale_to_floor(min_lr_ratio, _ramp_down(decay_type, progress, num_cycles)))
    return min_lr_ratio
