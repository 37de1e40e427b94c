"""A run's plan as the seven values of ``set_initial_training_values``, of either release of transformers, and back."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

from hf_compat.errors import OverrideError, described
from hf_compat.overriding import check_returned
from hf_compat.plan.plan import RunPlan

if TYPE_CHECKING:
    from hf_compat.arguments.releases.semantics import Semantics

__all__ = ["from_values", "to_values"]


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
