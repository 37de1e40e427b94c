"""Where in the training data a run is, and where one that is resumed with other batches goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from hf_compat.plan.plan import RunPlan
from hf_compat.plan.units import epochs_for, update_steps_for, update_steps_per_epoch

__all__ = ["DataPosition", "plan_for_rest"]


@dataclass(frozen=True, slots=True)
class DataPosition:
    """How much of the data a run has trained on, whatever the size of its batches."""

    epoch: int
    """Whole epochs done."""
    samples: int
    """Samples of the epoch under way, over all devices."""
    samples_per_batch: int
    """Samples in one batch, over all devices."""
    accumulate: int
    """Batches in a full window."""

    @classmethod
    def after(cls, plan: RunPlan, epoch: int, batches: int, shift: int = 0) -> Self:
        """Return the position after ``batches`` batches of ``epoch``; a whole epoch is the start of the next one.

        Args:
            plan: The run's plan.
            epoch: Whole epochs done.
            batches: Batches per device of the epoch under way.
            shift: Samples that the batches are off a whole number of them, because the epoch began with others.
        """
        size = plan.samples_per_batch
        if batches >= plan.batches_per_epoch:
            return cls(epoch + 1, 0, size, plan.accumulate)
        return cls(epoch, batches * size + shift, size, plan.accumulate)

    def agrees(self, plan: RunPlan, global_step: int) -> bool:
        """Return whether ``global_step`` update steps of ``plan``, from the start, lead here."""
        epoch, windows = divmod(global_step, plan.update_steps_per_epoch)
        samples = windows * plan.accumulate * plan.samples_per_batch
        return self == DataPosition(epoch, samples, plan.samples_per_batch, plan.accumulate)

    def to_dict(self) -> dict[str, int]:
        """Return what a checkpoint keeps of the position."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """Return the position that a checkpoint has kept.

        Raises:
            ValueError: If ``saved`` is no such dict.
        """
        names = [item.name for item in fields(cls)]
        if not isinstance(saved, Mapping) or sorted(saved) != sorted(names):
            raise ValueError(f"not a position in the data: {saved!r:.200}")
        if not all(type(saved[name]) is int and saved[name] >= 0 for name in names):
            raise ValueError(f"not a position in the data: {saved!r:.200}")
        return cls(**saved)


def plan_for_rest(
    plan: RunPlan, *, num_train_epochs: float | None, global_step: int, epoch: int, batches_left: int
) -> tuple[RunPlan, int]:
    """Return the plan of a run that goes on with other windows, and the windows of ``epoch`` that count as done.

    Args:
        plan: The plan of a run with the new windows from the start.
        num_train_epochs: How many epochs the run is to make in all; None if ``max_steps`` decides.
        global_step: Update steps done, with the old windows.
        epoch: Whole epochs done.
        batches_left: Batches per device that are left of ``epoch``.
    """
    per_epoch = plan.update_steps_per_epoch
    windows_left = update_steps_per_epoch(batches_left, plan.accumulate) if batches_left else 0
    done = per_epoch - windows_left
    if plan.num_train_epochs == sys.maxsize:  # no length is known: max_steps decides, over any number of epochs
        return plan, done
    if num_train_epochs is None:
        beyond = max(plan.max_steps - global_step - windows_left, 0)
        return replace(plan, num_train_epochs=epoch + 1 + epochs_for(beyond, per_epoch)), done
    left = max(update_steps_for(num_train_epochs, per_epoch) - epoch * per_epoch - done, 0)
    return replace(plan, max_steps=global_step + left), done
