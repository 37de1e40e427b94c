"""``RunPlan``: the number of epochs, update steps and samples of a run, computed before it starts.

A *window* is the batches accumulated for one update step; the last window of an epoch may be short and still steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from hf_compat.errors import DataError, OverrideError, described
from hf_compat.overriding import check_returned

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.releases.semantics import Semantics

__all__ = [
    "RunPlan",
    "build_plan",
    "epochs_for",
    "from_values",
    "to_values",
    "update_steps_for",
    "update_steps_per_epoch",
]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The numbers of one ``train`` call, as transformers' ``set_initial_training_values`` returns them."""

    num_train_epochs: int
    """Epochs, a last incomplete one included; ``sys.maxsize`` for a data loader without length."""
    update_steps_per_epoch: int
    """Update steps per full epoch; ``max_steps`` for a data loader without length."""
    batches_per_epoch: int
    """Batches per device and full epoch; all batches of the run for a data loader without length."""
    accumulate: int
    """Gradient accumulation: batches in a full window."""
    max_steps: int
    """Update steps of the whole run."""
    num_examples: int
    """Samples per epoch, over all devices."""
    num_train_samples: float
    """Samples of the whole run, for the speeds in the final log."""
    samples_per_update_step: int
    """Samples per update step, over all devices and the window."""

    @property
    def samples_per_batch(self) -> int:
        """Samples in one batch, over all devices."""
        return self.samples_per_update_step // self.accumulate


def build_plan(
    args: TrainingArguments, *, batches: int | None, examples: int | None, samples_per_update_step: int
) -> RunPlan:
    """Return the plan of a run.

    Args:
        args: The training arguments.
        batches: Batches per device and epoch; None if the data loader has no length.
        examples: Samples per epoch; None if unknown.
        samples_per_update_step: Samples per update step, over all devices and the window.

    Raises:
        DataError: If the data loader is empty or has no length, and ``max_steps`` is not positive.
    """
    most, num_epochs, accumulate = args.max_steps, args.num_train_epochs, args.gradient_accumulation_steps
    if batches is None:
        return _plan_without_length(most, accumulate, samples_per_update_step)
    if batches == 0:
        if most <= 0:
            raise DataError(
                f"`train_dataset` yields no batch, and `max_steps={most}`: it is empty, or "
                "`dataloader_drop_last=True` drops its only batch. Pass a dataset with samples, or a smaller "
                "`per_device_train_batch_size`."
            )
        return replace(_plan_without_length(most, accumulate, samples_per_update_step), batches_per_epoch=0)
    steps_per_epoch = update_steps_per_epoch(batches, accumulate)
    if most > 0:
        max_steps, epochs = most, epochs_for(most, steps_per_epoch)
        samples: float = max_steps * samples_per_update_step
    else:
        # max_steps=0 overrides num_train_epochs upstream: the run then ends after its first update step.
        max_steps = update_steps_for(num_epochs, steps_per_epoch) if most < 0 else 0
        epochs = math.ceil(num_epochs)
        samples = (examples or 0) * num_epochs
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


def _plan_without_length(max_steps: int, accumulate: int, samples_per_update_step: int) -> RunPlan:
    if max_steps <= 0:
        raise DataError(
            f"`max_steps={max_steps}` must be set to a positive value if dataloader does not have a length: the "
            "number of update steps to train."
        )
    samples = max_steps * samples_per_update_step
    return RunPlan(
        num_train_epochs=sys.maxsize,
        update_steps_per_epoch=max_steps,
        batches_per_epoch=max_steps * accumulate,
        accumulate=accumulate,
        max_steps=max_steps,
        num_examples=samples,
        num_train_samples=samples,
        samples_per_update_step=samples_per_update_step,
    )


def update_steps_per_epoch(batches: int, accumulate: int) -> int:
    """Return the update steps of an epoch of ``batches`` batches, with ``accumulate`` batches per window."""
    return max(math.ceil(batches / accumulate), 1)


def update_steps_for(epochs: float, steps_per_epoch: int) -> int:
    """Return the update steps of ``epochs`` epochs, rounded up."""
    return math.ceil(epochs * steps_per_epoch)


def epochs_for(update_steps: int, steps_per_epoch: int) -> int:
    """Return the epochs that ``update_steps`` update steps need, rounded up."""
    return math.ceil(update_steps / steps_per_epoch)


def to_values(
    plan: RunPlan, *, batches: int | None, epochs_decide: bool, semantics: Semantics
) -> tuple[int | float | None, ...]:
    """Return the seven values that stand for ``plan``.

    Args:
        plan: The numbers of a run.
        batches: The train loader's length, None if it has none.
        epochs_decide: Whether ``num_train_epochs`` says when the run ends, rather than ``max_steps``.
        semantics: The release that is followed.

    Returns:
        Epochs, update steps per epoch, samples per epoch, samples of the run; then, since transformers 5.3, samples per
        update step and batches per epoch, before it ``epochs_decide`` and ``batches``; and the update steps of the run.
    """
    first = (plan.num_train_epochs, plan.update_steps_per_epoch, plan.num_examples, plan.num_train_samples)
    if semantics.plans_by_batches:
        return *first, plan.samples_per_update_step, plan.batches_per_epoch, plan.max_steps
    return *first, epochs_decide, batches, plan.max_steps


def samples_per_update_step(trainer: Any, args: Any) -> int:
    """Return the Trainer's ``get_total_train_batch_size``.

    Raises:
        OverrideError: If that returns no number.
    """
    samples: Any = trainer.get_total_train_batch_size(args)
    check_returned(
        isinstance(samples, Real), samples, "get_total_train_batch_size", "the number of samples of an update step"
    )
    return samples  # type: ignore[no-any-return]


def from_values(values: Iterable[Any], *, accumulate: int, samples_per_update_step: int | None = None) -> RunPlan:
    """Return the plan that the seven ``values`` stand for; of what :func:`to_values` returned, the plan it was given.

    Args:
        values: What ``set_initial_training_values``, perhaps a subclass's, returned; its numbers are taken as they are.
        accumulate: Batches in a full window.
        samples_per_update_step: Samples that one update step sees, for the values of a release before 5.3, which do
            not say it; None for those that do.
    """
    try:
        epochs, steps_per_epoch, examples, samples, fifth, batches, max_steps = values
    except (TypeError, ValueError):
        raise OverrideError(
            f"`set_initial_training_values` returned {described(values)}. Return the seven numbers of the run, as "
            "`super().set_initial_training_values(...)` does."
        ) from None
    return RunPlan(
        num_train_epochs=epochs,
        update_steps_per_epoch=steps_per_epoch,
        batches_per_epoch=max_steps * accumulate if batches is None else batches,
        accumulate=accumulate,
        max_steps=max_steps,
        num_examples=examples,
        num_train_samples=samples,
        samples_per_update_step=fifth if samples_per_update_step is None else samples_per_update_step,
    )
