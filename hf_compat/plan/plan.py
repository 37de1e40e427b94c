"""Every number of a training run, decided before it starts."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Protocol

from hf_compat.errors import DataError
from hf_compat.plan.units import epochs_for, update_steps_for, update_steps_per_epoch

__all__ = ["RunPlan", "build_plan"]


class _Schedule(Protocol):
    """The fields of ``TrainingArguments`` that the length of a run follows from."""

    gradient_accumulation_steps: int
    max_steps: int
    num_train_epochs: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The numbers of one ``train`` call.

    The same as transformers' ``set_initial_training_values`` gives.
    """

    num_train_epochs: int
    """Passes over the train loader that are begun; ``sys.maxsize`` for a loader without length."""
    update_steps_per_epoch: int
    """Update steps in one whole pass; ``max_steps`` for a loader without length."""
    batches_per_epoch: int
    """Batches per device in one whole pass; all batches of the run for a loader without length."""
    accumulate: int
    """Batches in a full window."""
    max_steps: int
    """Update steps of the whole run."""
    num_examples: int
    """Samples in one pass over all devices."""
    num_train_samples: float
    """Samples of the whole run, for the speeds in the final log."""
    samples_per_update_step: int
    """Samples that one update step sees, over all devices and the window."""

    @property
    def samples_per_batch(self) -> int:
        """Samples in one batch, over all devices."""
        return self.samples_per_update_step // self.accumulate


def build_plan(args: _Schedule, *, batches: int | None, examples: int | None, samples_per_update_step: int) -> RunPlan:
    """Return the numbers of a run.

    Args:
        args: Where the length of the run is written.
        batches: Batches per device in one pass over the train loader, None if it has no length.
        examples: Samples in one pass, None if unknown.
        samples_per_update_step: Samples that one update step sees, over all devices and the window.

    Raises:
        DataError: If the loader is empty, or has no length and ``max_steps`` is not positive.
    """
    accumulate = args.gradient_accumulation_steps
    if batches is None:
        return _plan_without_length(args, samples_per_update_step)
    if batches == 0:
        raise DataError(
            "`train_dataset` gives no batch: it is empty, or `dataloader_drop_last=True` drops its only batch. "
            "Pass samples to train on, or a smaller `per_device_train_batch_size`."
        )
    steps_per_epoch = update_steps_per_epoch(batches, accumulate)
    if args.max_steps > 0:
        max_steps = args.max_steps
        epochs = epochs_for(max_steps, steps_per_epoch)
        samples: float = max_steps * samples_per_update_step
    else:
        # max_steps=0 counts as "no epochs decide" upstream: the first update step then ends the run.
        max_steps = update_steps_for(args.num_train_epochs, steps_per_epoch) if args.max_steps < 0 else 0
        epochs = math.ceil(args.num_train_epochs)
        samples = (examples or 0) * args.num_train_epochs
    return RunPlan(
        num_train_epochs=epochs,
        update_steps_per_epoch=steps_per_epoch,
        batches_per_epoch=batches,
        accumulate=accumulate,
        max_steps=max_steps,
        num_examples=examples or 0,
        num_train_samples=samples,
        samples_per_update_step=samples_per_update_step,
    )


def _plan_without_length(args: _Schedule, samples_per_update_step: int) -> RunPlan:
    if args.max_steps <= 0:
        raise DataError(
            f"`max_steps={args.max_steps}`: `train_dataset` has no length, so epochs cannot be counted. "
            "Set `max_steps` to the number of update steps to make."
        )
    samples = args.max_steps * samples_per_update_step
    return RunPlan(
        num_train_epochs=sys.maxsize,
        update_steps_per_epoch=args.max_steps,
        batches_per_epoch=args.max_steps * args.gradient_accumulation_steps,
        accumulate=args.gradient_accumulation_steps,
        max_steps=args.max_steps,
        num_examples=samples,
        num_train_samples=samples,
        samples_per_update_step=samples_per_update_step,
    )
