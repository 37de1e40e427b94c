"""``EvaluationTimes`` and ``LoopSettings``: what Lightning's keywords say of a run and no training argument says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hf_compat.errors import DataError
from hf_compat.plan.data_limits import Share, share_of
from hf_compat.plan.plan import RunPlan

__all__ = ["EvaluationTimes", "LoopSettings", "steps_between"]


@dataclass(frozen=True, slots=True)
class EvaluationTimes:
    """Times of evaluations, by ``val_check_interval`` and ``check_val_every_n_epoch``."""

    every: Share | timedelta = 1.0
    """Update steps of an epoch, a fraction of an epoch, or the time between two evaluations; 1.0 for an epoch's end."""
    every_n_epochs: int = 1
    """Evaluate in each n-th epoch alone."""
    delay: float = 0.0
    """``eval_delay``: update steps, or epochs where evaluations are at their ends, before the first evaluation."""

    @property
    def at_epoch_end(self) -> bool:
        """Whether evaluations are at the ends of epochs."""
        return isinstance(self.every, float) and self.every == 1.0

    def has_epoch(self, epoch: int) -> bool:
        """Return whether ``epoch``, from 0, is one with evaluations."""
        return (epoch + 1) % self.every_n_epochs == 0


def steps_between(times: EvaluationTimes, plan: RunPlan, *, has_length: bool) -> int | None:
    """Return the update steps from one evaluation of an epoch to the next; None if they are not what counts.

    Args:
        times: When the run evaluates.
        plan: The numbers of the run.
        has_length: Whether the length of an epoch is known.

    Raises:
        DataError: If an epoch has fewer update steps, or no length that a fraction could be taken of.
    """
    if times.at_epoch_end or isinstance(times.every, timedelta):
        return None
    steps = plan.update_steps_per_epoch
    if isinstance(times.every, float):
        if not has_length:
            return share_of(times.every, None, "val_check_interval")
        return max(1, int(steps * times.every))
    if has_length and times.every > steps:
        raise DataError(
            f"`lightning={{'val_check_interval': {times.every}}}`: an epoch has {steps} update steps, so it would "
            "never be evaluated. Set at most as many, or `'check_val_every_n_epoch': None` to count over all epochs."
        )
    return times.every


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of a run that keywords of ``lightning.Trainer`` add to its training arguments."""

    clip_value: float | None = None
    """Clip each element of the gradients to between minus this and this; None to clip by ``max_grad_norm``."""
    sanity_batches: int = 0
    """Batches of an evaluation that a run begins with, to see that it works; -1 for all."""
    reload_every: int = 0
    """Epochs after which a run asks for a new train loader; 0 for never."""
    shards_batches: bool = True
    """Whether each rank gets its share of the batches; otherwise its own loader is left as it is."""
    evaluation_times: EvaluationTimes | None = None
    """When the run evaluates; None if the training arguments say it."""
