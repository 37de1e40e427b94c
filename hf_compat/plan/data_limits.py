"""``DataLimits``: how much of its data a run reads, as Lightning's keywords say."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import TypeAlias

from hf_compat.errors import DataError
from hf_compat.plan.plan import RunPlan, epochs_for, update_steps_for

__all__ = ["DataLimits", "Share", "limited", "share_of"]

Share: TypeAlias = int | float
"""A number, or as a float the fraction of what there is; 1.0 for all."""


@dataclass(frozen=True, slots=True)
class DataLimits:
    """Limits of the data that a run reads."""

    train: Share = 1.0
    """Update steps per epoch."""
    evaluation: Share = 1.0
    """Batches of each evaluation."""
    prediction: Share = 1.0
    """Batches of each prediction."""
    test: Share = 1.0
    """Batches of each call of Lightning's ``test``."""
    max_epochs: float | None = None
    """Epochs after which a run ends, if ``max_steps`` allows more update steps; None for no limit."""


def limited(plan: RunPlan, limits: DataLimits, *, num_train_epochs: float | None) -> RunPlan:
    """Return ``plan`` within ``limits``; an epoch then ends after fewer update steps.

    Args:
        plan: The plan of a run over all its data.
        limits: How much of it is read.
        num_train_epochs: Epochs of the run; None if ``max_steps`` decides.

    Raises:
        DataError: If no update step is left, or the loader has no length that a fraction could be taken of.
    """
    if limits.train == 1.0 and isinstance(limits.train, float) and limits.max_epochs is None:
        return plan
    has_length = plan.num_train_epochs < sys.maxsize
    steps = share_of(limits.train, plan.update_steps_per_epoch if has_length else None, "limit_train_batches")
    steps = plan.update_steps_per_epoch if steps is None else steps
    if steps == 0:
        raise DataError(
            f"`lightning={{'limit_train_batches': {limits.train!r}}}` leaves no update step of the "
            f"{plan.update_steps_per_epoch} of an epoch. Set it to more."
        )
    batches = min(plan.batches_per_epoch, steps * plan.accumulate)
    examples = min(plan.num_examples, batches * plan.samples_per_batch)
    if num_train_epochs is not None:
        max_steps, epochs = update_steps_for(num_train_epochs, steps), math.ceil(num_train_epochs)
        samples: float = examples * num_train_epochs
    else:
        most = plan.max_steps if limits.max_epochs is None else update_steps_for(limits.max_epochs, steps)
        max_steps = min(plan.max_steps, most)
        epochs = epochs_for(max_steps, steps) if has_length else plan.num_train_epochs
        samples = max_steps * plan.samples_per_update_step
    return replace(
        plan,
        num_train_epochs=epochs,
        update_steps_per_epoch=steps,
        batches_per_epoch=batches,
        max_steps=max_steps,
        num_examples=examples,
        num_train_samples=samples,
    )


def share_of(share: Share, whole: int | None, keyword: str) -> int | None:
    """Return how many of ``whole`` are read, as Lightning counts them; None for all of an unknown number.

    Args:
        share: How many.
        whole: How many there are; None if that is unknown.
        keyword: The keyword of ``lightning.Trainer``, for the message.

    Raises:
        DataError: If it is a fraction of an unknown number, or of less than one.
    """
    if isinstance(share, int):
        return share if whole is None else min(share, whole)
    if share == 1.0:
        return whole
    if whole is None:
        raise DataError(
            f"`lightning={{'{keyword}': {share!r}}}`: the data loader has no length, so a fraction of it is "
            "undefined. Set a number, or 1.0."
        )
    if share > 0.0 and int(whole * share) == 0:
        raise DataError(
            f"`lightning={{'{keyword}': {share!r}}}`: that is less than one of {whole}. Set at least {1 / whole:.3g}."
        )
    return int(whole * share)
