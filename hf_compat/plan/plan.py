"""``RunPlan``: the number of epochs, update steps and samples of a run, computed before it starts.

A *window* is the batches accumulated for one update step; the last window of an epoch may be short and still steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from hf_compat.errors import DataError, OverrideError, described
from hf_compat.overriding import check_returned

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.releases import Semantics


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
    """Samples per update step, over all devices and the window; as in transformers, as if no batch were shared."""
    ranks_of_batch: int = 1
    """Ranks among which each batch is split; 1 where every rank has batches of its own."""

    @property
    def has_length(self) -> bool:
        """Whether the data loader has a length; without one ``max_steps`` alone ends the run."""
        return self.num_train_epochs < sys.maxsize

    @property
    def samples_per_batch(self) -> int:
        """Samples in one batch, over all devices."""
        return self.samples_per_update_step // (self.accumulate * self.ranks_of_batch)

    def with_epoch_of(self, batches: int) -> RunPlan:
        """Return the plan of an epoch of the run that has ``batches`` batches per device."""
        steps = update_steps_per_epoch(batches, self.accumulate)
        return replace(self, batches_per_epoch=batches, update_steps_per_epoch=steps)


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


# `DataLimits`: how much of its data a run reads, as Lightning's keywords say.


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
    steps = share_of(limits.train, plan.update_steps_per_epoch if plan.has_length else None, "limit_train_batches")
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
        epochs = epochs_for(max_steps, steps) if plan.has_length else plan.num_train_epochs
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


def share_of(share: Share, total: int | None, keyword: str) -> int | None:
    """Return how many of ``total`` are read, as Lightning counts them; None for all of an unknown number.

    Args:
        share: How many.
        total: How many there are; None if that is unknown.
        keyword: The keyword of ``lightning.Trainer``, for the message.

    Raises:
        DataError: If it is a fraction of an unknown number, or of less than one.
    """
    if isinstance(share, int):
        return share if total is None else min(share, total)
    if share == 1.0:
        return total
    if total is None:
        raise DataError(
            f"`lightning={{'{keyword}': {share!r}}}`: the data loader has no length, so a fraction of it is "
            "undefined. Set a number, or 1.0."
        )
    if share > 0.0 and int(total * share) == 0:
        raise DataError(
            f"`lightning={{'{keyword}': {share!r}}}`: that is less than one of {total}. Set at least {1 / total:.3g}."
        )
    return int(total * share)


# `EvaluationTimes` and `LoopSettings`: what Lightning's keywords say of a run and no training argument says.


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


def steps_between(times: EvaluationTimes, plan: RunPlan) -> int | None:
    """Return the update steps from one evaluation of an epoch to the next; None if they are not what counts.

    Args:
        times: When the run evaluates.
        plan: The numbers of the run.

    Raises:
        DataError: If an epoch has fewer update steps, or no length that a fraction could be taken of.
    """
    if times.at_epoch_end or isinstance(times.every, timedelta):
        return None
    steps = plan.update_steps_per_epoch
    if isinstance(times.every, float):
        if not plan.has_length:
            return share_of(times.every, None, "val_check_interval")
        return max(1, int(steps * times.every))
    if plan.has_length and times.every > steps:
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


# `DataPosition`: how far a run has read its training data, and where it resumes with another batch size.


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
    ranks_of_batch: int = 1
    """As of the plan; 0 if not known, of a release that counted the samples of a shared batch once for each rank."""

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
        others = (size, plan.accumulate, offset.other_windows, plan.ranks_of_batch)
        if batches >= plan.batches_per_epoch:
            return cls(epoch + 1, 0, *others)
        return cls(epoch, batches * size + (offset.samples if epoch == offset.epoch else 0), *others)

    def counted_once(self, plan: RunPlan) -> Self:
        """Return the position in samples counted once; where the ranks are not known, by those of ``plan``."""
        if self.ranks_of_batch or plan.ranks_of_batch == 1:
            return self
        ranks = plan.ranks_of_batch
        return replace(self, samples=self.samples // ranks, samples_per_batch=self.samples_per_batch // ranks)

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
        older = {"other_windows": True, "ranks_of_batch": 0}  # which lack these
        values = {**older, **saved} if isinstance(saved, Mapping) else {}
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
    if not plan.has_length:  # max_steps limits the run, over any number of epochs
        return plan, done
    if num_train_epochs is None:
        beyond = max(plan.max_steps - global_step - windows_left, 0)
        return replace(plan, num_train_epochs=epoch + 1 + epochs_for(beyond, per_epoch)), done
    left = max(update_steps_for(num_train_epochs, per_epoch) - epoch * per_epoch - done, 0)
    return replace(plan, max_steps=global_step + left), done
