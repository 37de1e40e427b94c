"""Compares the weights of two recorded runs: the largest difference, and the module that differs first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hf_compat.tools.verify.record import Moment, Record, Weights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_NAMED", "WeightsDifference", "compare_weights", "tensor_difference"]

MOST_NAMED = 3
"""Parameters that a message names."""


@dataclass(frozen=True, slots=True)
class WeightsDifference:
    """Differences between the weights of two runs."""

    largest: float
    """Largest difference of a weight, relative to the largest weight of its parameter."""
    absolute: float
    parameter: str | None
    """Where it is."""
    tolerance: float
    first: Moment | None = None
    """When a bit differs first."""
    module: str | None = None
    """Of the first parameter, in the model's order, that differs then."""
    differing: tuple[str, ...] = ()
    """All parameters that differ then."""
    count: int = 0
    """Parameters of the model."""
    problem: str = ""
    """Why the two cannot be compared; empty if they can."""
    beyond: Moment | None = None
    """When the tolerance is exceeded first, as far as weights were kept."""
    by_moment: Mapping[Moment, float] = field(default_factory=dict)
    """Largest relative difference, where the weights were kept."""


def compare_weights(upstream: Record, ours: Record, tolerance: float) -> WeightsDifference:
    """Return how the weights differ, from the beginning of training on."""
    missing = {*upstream.weights} ^ {*ours.weights}
    if missing:
        (moment, at), *_ = sorted(missing)
        return WeightsDifference(
            0.0, 0.0, None, tolerance, moment, problem=f"one run has no {at} of training at step {moment[1]}"
        )
    first: Moment | None = None
    beyond: Moment | None = None
    differing: tuple[str, ...] = ()
    largest, absolute, parameter = 0.0, 0.0, None
    by_moment: dict[Moment, float] = {}
    count = 0
    for key, (theirs, own) in ((key, (upstream.weights[key], ours.weights[key])) for key in sorted(upstream.weights)):
        count = max(count, len(theirs.digests))
        if [*theirs.digests] != [*own.digests]:
            return WeightsDifference(
                0.0, 0.0, None, tolerance, key[0], problem=_names_differ(theirs.digests, own.digests)
            )
        changed = tuple(name for name, digest in theirs.digests.items() if own.digests[name] != digest)
        if changed and first is None:
            first, differing = key[0], changed
        here = _largest(theirs, own, changed)
        if here is None:
            continue
        by_moment[key[0]] = max(by_moment.get(key[0], 0.0), here[0])
        if here[0] > tolerance and beyond is None:
            beyond = key[0]
        if here[0] > largest:
            largest, absolute, parameter = here
    module = differing[0].rpartition(".")[0] or "the model itself" if differing else None
    return WeightsDifference(
        largest, absolute, parameter, tolerance, first, module, differing, count, "", beyond, by_moment
    )


def _names_differ(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    only = sorted({*first} ^ {*second})
    return f"other parameters, or in another order: {', '.join(only[:MOST_NAMED])}"


def _largest(theirs: Weights, own: Weights, changed: tuple[str, ...]) -> tuple[float, float, str | None] | None:
    """Return the largest relative difference, the absolute one there, and the parameter; None without the weights."""
    if theirs.file is None or own.file is None:
        return None
    found = [(*_difference(theirs.file, own.file, name), name) for name in changed]
    return max(found, default=(0.0, 0.0, None))


def _difference(first: Path, second: Path, name: str) -> tuple[float, float]:
    from safetensors import safe_open

    with safe_open(first, "pt") as theirs, safe_open(second, "pt") as own:
        one, other = theirs.get_tensor(name).double(), own.get_tensor(name).double()
    return tensor_difference(one, other)


def tensor_difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the largest difference relative to the largest value, and the absolute one.

    Both are infinite for tensors of other shapes, and if a value is NaN or infinite in one of them alone.
    """
    if one.shape != other.shape:
        return math.inf, math.inf
    differs = (one != other) & ~(one.isnan() & other.isnan())
    if not differs.any():
        return 0.0, 0.0
    if not (one[differs].isfinite() & other[differs].isfinite()).all():
        return math.inf, math.inf
    absolute = (one[differs] - other[differs]).abs().max().item()
    scale = max(tensor[tensor.isfinite()].abs().max().item() for tensor in (one, other))
    return absolute / scale, absolute
