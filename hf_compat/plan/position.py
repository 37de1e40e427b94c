"""``DataPosition``: how far a run has read its training data, and where it resumes with another batch size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from hf_compat.plan.plan import RunPlan, epochs_for, update_steps_for, update_steps_per_epoch

__all__ = ["DataPosition", "ResumeOffset", "plan_for_rest"]


@dataclass(frozen=True, slots=True)
class ResumeOffset:
    """Count of samples of a run that was resumed with other windows."""

    epoch: int = 0
    """The epoch that was resumed in the middle."""
    samples: int = 0
    """Samples of that epoch that its batches do not count."""
    other_windows: bool = False
    """Whether update steps of the run were made with another batch size, accumulation or world size."""


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Amount of data that a run has trained on, in samples, independent of the batch size."""

    epoch: int
    """Completed epochs."""
    samples: int
    """Samples read in the current epoch, over all devices."""
    samples_per_batch: int
    """Samples in one batch, over all devices."""
    accumulate: int
    """Batches in a full window."""
    other_windows: bool = False
    """Whether earlier update steps were made with other windows, so that their number does not tell the position."""

    @classmethod
    def after(cls, plan: RunPlan, epoch: int, batches: int, offset: ResumeOffset) -> Self:
        """Return the position after ``batches`` batches of ``epoch``; a completed epoch is the start of the next one.

        Args:
            plan: The run's plan.
            epoch: Completed epochs.
            batches: Batches per device of the current epoch.
            offset: Samples that ``batches`` does not count.
        """
        size = plan.samples_per_batch
        if batches >= plan.batches_per_epoch:
            return cls(epoch + 1, 0, size, plan.accumulate, offset.other_windows)
        samples = batches * size + (offset.samples if epoch == offset.epoch else 0)
        return cls(epoch, samples, size, plan.accumulate, offset.other_windows)

    def at_next_epoch(self) -> Self:
        """Return the position at the start of the next epoch, after one that was ended early."""
        return replace(self, epoch=self.epoch + 1, samples=0) if self.samples else self

    def has_windows_of(self, plan: RunPlan) -> bool:
        """Return whether all update steps so far were made with the windows of ``plan``."""
        windows = (self.samples_per_batch, self.accumulate)
        return windows == (plan.samples_per_batch, plan.accumulate) and not self.other_windows

    def agrees(self, plan: RunPlan, global_step: int) -> bool:
        """Return whether this is the position after ``global_step`` update steps of ``plan``."""
        epoch, windows = divmod(global_step, plan.update_steps_per_epoch)
        samples = windows * plan.accumulate * plan.samples_per_batch
        at = (self.epoch, self.samples, self.samples_per_batch, self.accumulate)
        return at == (epoch, samples, plan.samples_per_batch, plan.accumulate)

    def to_dict(self) -> dict[str, int]:
        """Return the position as it is saved in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: object) -> Self:
        """Return the position saved in a checkpoint.

        Raises:
            ValueError: If ``saved`` is not such a dict.
        """
        names = [item.name for item in fields(cls)]
        values = {"other_windows": True, **saved} if isinstance(saved, Mapping) else {}  # older ones lack it
        if sorted(values) != sorted(names) or type(values["other_windows"]) is not bool:
            raise ValueError(f"not a position in the data: {saved!r:.200}")
        if not all(type(values[name]) in (int, bool) and values[name] >= 0 for name in names):
            raise ValueError(f"not a position in the data: {saved!r:.200}")
        return cls(**values)


def plan_for_rest(
    plan: RunPlan, *, num_train_epochs: float | None, global_step: int, epoch: int, batches_left: int
) -> tuple[RunPlan, int]:
    """Return the plan of a run resumed with other windows, and the windows of ``epoch`` that count as done.

    Args:
        plan: The plan of a run with the new windows from the start.
        num_train_epochs: Epochs of the whole run; None if ``max_steps`` limits it.
        global_step: Update steps done, with the old windows.
        epoch: Completed epochs.
        batches_left: Remaining batches per device of ``epoch``.
    """
    per_epoch = plan.update_steps_per_epoch
    windows_left = update_steps_per_epoch(batches_left, plan.accumulate) if batches_left else 0
    done = per_epoch - windows_left
    if plan.num_train_epochs == sys.maxsize:  # unknown length: max_steps limits the run, over any number of epochs
        return plan, done
    if num_train_epochs is None:
        beyond = max(plan.max_steps - global_step - windows_left, 0)
        return replace(plan, num_train_epochs=epoch + 1 + epochs_for(beyond, per_epoch)), done
    left = max(update_steps_for(num_train_epochs, per_epoch) - epoch * per_epoch - done, 0)
    return replace(plan, max_steps=global_step + left), done
