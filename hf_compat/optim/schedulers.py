"""Learning-rate schedules, by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from packaging.version import Version
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hf_compat.arguments.releases import OLDEST_RELEASE, Semantics, resolve_semantics
from hf_compat.errors import ArgumentsError, ArgumentTypesError, UnknownArgumentError, warn_user
from hf_compat.optim.classes import greedy_class
from hf_compat.optim.greedy import GreedyLR
from hf_compat.optim.optimizers import plain_name

# Learning-rate curves: the multiplier of the initial learning rate at each update step.
#
# Module-level functions of the update step, bound with `functools.partial`, so that schedules can be pickled and the
# state dict of a `LambdaLR` is the same as that of transformers'.
#
# References:
#     Same values as transformers `optimization.py`, with the same order of floating-point operations.


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


@dataclass(frozen=True, slots=True)
class SchedulerRule:
    """Builder of an ``lr_scheduler_type``."""

    build: Callable[..., LRScheduler | GreedyLR]
    """Called with the optimizer, the warm-up steps, the training steps, and the ``lr_scheduler_kwargs``."""
    kwargs_since: Version | None = OLDEST_RELEASE
    """The first transformers release that uses ``lr_scheduler_kwargs``; None if all ignore them."""
    kwargs_of: Callable[..., Any] | None = None
    """The class whose parameters the ``lr_scheduler_kwargs`` are. Default: the keywords of ``build``."""
    needs: tuple[str, ...] = ("num_warmup_steps", "num_training_steps")
    """The numbers of update steps that :func:`get_scheduler` has to be given."""

    def takes_kwargs(self, release: Version) -> bool:
        """Return whether ``release`` uses ``lr_scheduler_kwargs``."""
        return self.kwargs_since is not None and release >= self.kwargs_since

    def keywords(self) -> list[str]:
        """Return the names allowed in ``lr_scheduler_kwargs``."""
        # The first three of ``build`` and the first of a class, the optimizer, are not the user's.
        names = list(inspect.signature(self.kwargs_of or self.build).parameters)
        return names[1:] if self.kwargs_of else names[3:]


def _constant(optimizer: Optimizer, warmup: int, total: int) -> LambdaLR:
    # Not a partial: in transformers' state dict too its lambda is None.
    return LambdaLR(optimizer, constant)


def _constant_with_warmup(optimizer: Optimizer, warmup: int, total: int) -> LambdaLR:
    return LambdaLR(optimizer, partial(constant_with_warmup, num_warmup_steps=warmup))


def _linear(optimizer: Optimizer, warmup: int, total: int) -> LambdaLR:
    return LambdaLR(optimizer, partial(linear, num_warmup_steps=warmup, num_training_steps=total))


def _cosine(optimizer: Optimizer, warmup: int, total: int, *, num_cycles: float = 0.5) -> LambdaLR:
    return LambdaLR(
        optimizer, partial(cosine, num_warmup_steps=warmup, num_training_steps=total, num_cycles=num_cycles)
    )


def _cosine_with_restarts(optimizer: Optimizer, warmup: int, total: int, *, num_cycles: float = 1) -> LambdaLR:
    curve = partial(cosine_with_restarts, num_warmup_steps=warmup, num_training_steps=total, num_cycles=num_cycles)
    return LambdaLR(optimizer, curve)


def _floor(optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None) -> float:
    """Return the smallest multiplier of the learning rate, from ``min_lr`` or ``min_lr_rate``."""
    if min_lr is not None and min_lr_rate is not None:
        problem = f"`lr_scheduler_kwargs` has min_lr={min_lr} and min_lr_rate={min_lr_rate}: remove one of them."
        raise ArgumentsError([problem])
    if min_lr is not None:
        return min_lr / float(optimizer.defaults["lr"])
    if min_lr_rate is None:
        raise ArgumentsError(["`lr_scheduler_kwargs` has neither min_lr nor min_lr_rate: set one of them."])
    return min_lr_rate


def _cosine_with_min_lr(
    optimizer: Optimizer,
    warmup: int,
    total: int,
    *,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    floor = _floor(optimizer, min_lr, min_lr_rate)
    curve = partial(cosine, num_warmup_steps=warmup, num_training_steps=total, num_cycles=num_cycles, min_lr_rate=floor)
    return LambdaLR(optimizer, curve)


def _cosine_warmup_with_min_lr(
    optimizer: Optimizer,
    warmup: int,
    total: int,
    *,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    curve = partial(
        cosine_early,
        num_warmup_steps=warmup,
        num_training_steps=total,
        num_cycles=num_cycles,
        min_lr_rate=_floor(optimizer, min_lr, min_lr_rate),
        warmup_lr_rate=warmup_lr_rate,
    )
    return LambdaLR(optimizer, curve)


def _polynomial(optimizer: Optimizer, warmup: int, total: int, *, lr_end: float = 1e-7, power: float = 1.0) -> LambdaLR:
    initial = optimizer.defaults["lr"]
    if not initial > lr_end:
        problem = f"`lr_scheduler_kwargs` has lr_end={lr_end} with `learning_rate={initial}`: set a smaller lr_end."
        raise ArgumentsError([problem])
    curve = partial(
        polynomial,
        num_warmup_steps=warmup,
        num_training_steps=total,
        lr_init=initial,
        lr_end=lr_end,
        power=power,
    )
    return LambdaLR(optimizer, curve)


def _inverse_sqrt(optimizer: Optimizer, warmup: int, total: int, *, timescale: int | None = None) -> LambdaLR:
    scale = (warmup or 10_000) if timescale is None else timescale
    return LambdaLR(optimizer, partial(inverse_sqrt, num_warmup_steps=warmup, timescale=scale))


def _warmup_stable_decay(
    optimizer: Optimizer,
    warmup: int,
    total: int,
    *,
    num_decay_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
) -> LambdaLR:
    if num_decay_steps is None:
        problem = "`lr_scheduler_type='warmup_stable_decay'` needs num_decay_steps: add it to `lr_scheduler_kwargs`."
        raise ArgumentTypesError([problem])
    problems = [
        f"`lr_scheduler_kwargs` has {name}={shape!r}: use one of {', '.join(RAMPS)}."
        for name, shape in (("warmup_type", warmup_type), ("decay_type", decay_type))
        if shape not in RAMPS
    ]
    if problems:
        raise ArgumentsError(problems)
    if num_stable_steps is None:
        num_stable_steps = total - warmup - num_decay_steps
    elif (planned := warmup + num_stable_steps + num_decay_steps) != total:
        text = (
            f"`lr_scheduler_kwargs` has num_stable_steps={num_stable_steps}: the schedule ends after {planned} update "
            f"steps, the run after {total}. Remove it to fill the run."
        )
        warn_user(text)
    curve = partial(
        warmup_stable_decay,
        num_warmup_steps=warmup,
        num_stable_steps=num_stable_steps,
        num_decay_steps=num_decay_steps,
        warmup_type=warmup_type,
        decay_type=decay_type,
        min_lr_ratio=min_lr_ratio,
        num_cycles=num_cycles,
    )
    return LambdaLR(optimizer, curve)


def _reduce_lr_on_plateau(optimizer: Optimizer, warmup: int, total: int, **kwargs: Any) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer, **kwargs)


def _greedy(optimizer: Optimizer, warmup: int, total: int, **kwargs: Any) -> GreedyLR:
    schedule: GreedyLR = greedy_class()(optimizer, **kwargs)
    return schedule


_WARMUP = ("num_warmup_steps",)

SCHEDULERS: dict[str, SchedulerRule] = {
    "linear": SchedulerRule(_linear),
    "cosine": SchedulerRule(_cosine),
    "cosine_with_restarts": SchedulerRule(_cosine_with_restarts),
    "polynomial": SchedulerRule(_polynomial),
    "constant": SchedulerRule(_constant, kwargs_since=None, needs=()),
    "constant_with_warmup": SchedulerRule(_constant_with_warmup, kwargs_since=None, needs=_WARMUP),
    "inverse_sqrt": SchedulerRule(_inverse_sqrt, kwargs_since=Version("5.4"), needs=_WARMUP),
    "reduce_lr_on_plateau": SchedulerRule(_reduce_lr_on_plateau, kwargs_of=ReduceLROnPlateau, needs=()),
    "cosine_with_min_lr": SchedulerRule(_cosine_with_min_lr),
    "cosine_warmup_with_min_lr": SchedulerRule(_cosine_warmup_with_min_lr),
    "warmup_stable_decay": SchedulerRule(_warmup_stable_decay, needs=_WARMUP),
    "greedy": SchedulerRule(_greedy, kwargs_of=GreedyLR, needs=()),
}
"""``lr_scheduler_type`` to the rule that builds it."""


def unknown_scheduler_kwargs(name: str, kwargs: dict[str, Any] | None, semantics: Semantics) -> list[str]:
    """Return a problem for each of ``kwargs`` that schedule ``name`` does not take; none if it ignores them all."""
    name = plain_name(name)
    rule = SCHEDULERS.get(name)
    if rule is None or not rule.takes_kwargs(semantics.release):
        return []
    known = rule.keywords()
    return [
        f"`lr_scheduler_kwargs={{{unknown!r}: ...}}` with `lr_scheduler_type={name!r}`: "
        f"it takes {', '.join(known) or 'no arguments'}."
        for unknown in kwargs or ()
        if unknown not in known
    ]


def build_scheduler(
    name: str,
    optimizer: Optimizer,
    *,
    num_warmup_steps: int,
    num_training_steps: int,
    kwargs: dict[str, Any] | None = None,
    semantics: Semantics | None = None,
) -> LRScheduler | GreedyLR:
    """Return the learning-rate schedule ``name`` for ``optimizer``.

    Args:
        name: An ``lr_scheduler_type``, one of :data:`SCHEDULERS`, or the enum member.
        optimizer: The optimizer; the schedule sets the learning rate of all parameter groups.
        num_warmup_steps: Update steps of warm-up.
        num_training_steps: Update steps of the run, including warm-up.
        kwargs: The ``lr_scheduler_kwargs``.
        semantics: The transformers release to follow: it decides which schedules use ``kwargs``. Default: the
            installed one.

    Returns:
        A schedule to step after each update step; ``reduce_lr_on_plateau`` and ``greedy`` are stepped with a metric.

    Raises:
        ArgumentsError: If ``name`` is unknown, or a value in ``kwargs`` is invalid.
        UnknownArgumentError: If the schedule does not take a name in ``kwargs``.

    References:
        Same curves and state dicts as ``get_scheduler`` of transformers ``optimization.py``.
    """
    name = plain_name(name)
    rule = SCHEDULERS.get(name)
    if rule is None:
        near = difflib.get_close_matches(name, SCHEDULERS, n=1, cutoff=0.0)[0]
        raise ArgumentsError([f"`lr_scheduler_type={name!r}` is unknown: did you mean {near!r}?"])
    options = dict(kwargs or {})
    semantics = semantics or resolve_semantics()
    release = semantics.release
    if options and not rule.takes_kwargs(release):
        text = f"`lr_scheduler_kwargs={options}`: ignored by `lr_scheduler_type={name!r}` in transformers {release}."
        warn_user(text)
        options = {}
    if unknown := unknown_scheduler_kwargs(name, options, semantics):
        raise UnknownArgumentError("\n  ".join(unknown))
    return rule.build(optimizer, num_warmup_steps, num_training_steps, **options)


def get_scheduler(
    name: str,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return the learning-rate schedule ``name`` for ``optimizer``; see :func:`build_scheduler`.

    Args:
        name: An ``lr_scheduler_type``.
        optimizer: The optimizer.
        num_warmup_steps: Update steps of warm-up; not needed by schedules without one.
        num_training_steps: Update steps of the run; not needed by schedules without an end.
        scheduler_specific_kwargs: The ``lr_scheduler_kwargs``.

    Raises:
        ArgumentsError: If the schedule is unknown, or needs a number of update steps that is not given.
    """
    plain = plain_name(name)
    given = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    needed = SCHEDULERS[plain].needs if plain in SCHEDULERS else ()
    missing = [number for number in needed if given[number] is None]
    if missing:
        raise ArgumentsError([f"`{plain}` requires `{number}`: pass it to `get_scheduler`." for number in missing])
    return build_scheduler(
        name,
        optimizer,
        num_warmup_steps=num_warmup_steps or 0,
        num_training_steps=num_training_steps or 0,
        kwargs=scheduler_specific_kwargs,
    )


def steps_on_metric(scheduler: object) -> bool:
    """Return whether ``scheduler`` is stepped by evaluations, with a metric, rather than by update steps."""
    return isinstance(scheduler, ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR"
