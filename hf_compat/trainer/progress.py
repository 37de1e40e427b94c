"""Counts and logs of a run: loss, tokens, operations, update steps, its position in the data, times of evaluations."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_compat.arguments.derived import epochs_to_train
from hf_compat.data.loader import FirstBatches
from hf_compat.data.windows import Window
from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.errors import ModelError
from hf_compat.memory import TrainerMemoryTracker, WeakAttribute
from hf_compat.metrics import has_length
from hf_compat.model_facts import count_parameters
from hf_compat.overriding import WarnOnce, check_returned, is_overridden
from hf_compat.plan import DataPosition, ResumeOffset, RunPlan
from hf_compat.plan.plan import EvaluationTimes, steps_between
from hf_compat.trainer.loss import divide_scalar

if TYPE_CHECKING:
    from hf_compat.data.windows import ResumePosition
    from hf_compat.engine.strategies.choice import StrategyTraits
    from hf_compat.state import TrainerState
    from hf_compat.trainer.optimization import Norm
    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# Logs during training: averages over the update steps since the last log.


def take_logs(
    trainer: Trainer, counters: RunCounters, tr_loss: Tensor, grad_norm: Norm, learning_rate: float | None
) -> dict[str, float]:
    """Return the logs of the update steps since the last log, and begin to count anew.

    Args:
        trainer: The Trainer.
        counters: The run's counts.
        tr_loss: The loss summed since the last log, ``()``; set to 0 in place.
        grad_norm: The last gradient norm, None if it was not computed.
        learning_rate: The learning rate to log. Default: the schedule's last.
    """
    summed = trainer.accelerator.gather(tr_loss).mean().item()
    tr_loss -= tr_loss  # in place, as callers have a reference; a NaN stays, as in transformers
    mean = summed / (trainer.state.global_step - counters.last_logged_step)
    logs = {"loss": mean if trainer.semantics.logs_unrounded_loss else round(mean, 4)}
    if grad_norm is not None:
        logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, Tensor) else grad_norm
    logs["learning_rate"] = trainer._get_learning_rate() if learning_rate is None else learning_rate
    counters.total_loss_scalar += summed
    counters.last_logged_step = trainer.state.global_step
    trainer.store_flos()
    return logs


_ADDED_AT_ONCE = 64
"""Losses that are added up as soon as there are so many, read or not: each may keep what it is a view of."""


class LossSum:
    """Losses of batches, added up when they are read: together these small operations take half the time.

    Args:
        value: What to begin with, ``()``, where the losses are; None before a run.
        in_float32: Add them up in ``value``'s type; else in that of the losses if it is wider.
    """

    def __init__(self, value: Tensor | None = None, *, in_float32: bool = True) -> None:
        self._value = value
        self._in_float32 = in_float32
        self._added: list[tuple[Tensor, int | None]] = []

    @property
    def value(self) -> Tensor | None:
        """The sum, ``()``; it may be set, or changed in place."""
        if self._added:
            self._add_up()
        return self._value

    @value.setter
    def value(self, value: Tensor | None) -> None:
        self._added.clear()
        self._value = value

    def add(self, loss: Tensor, steps: int | None, *, may_change: bool = False) -> None:
        """Add the loss of a batch.

        Args:
            loss: ``()``. With another shape it is added up now, so that an error comes with its batch.
            steps: If it is NaN or infinite, add the mean of the losses before over so many update steps in its place.
                None: add it whatever it is.
            may_change: Whether ``loss`` may be written to later: it is added up now.

        Raises:
            ModelError: If it is on another device.
        """
        assert self._value is not None, "set as the run begins"
        if self._value.device != loss.device:
            raise ModelError(
                f"Calculated loss must be on the original device: it is on {loss.device}, but training runs on "
                f"{self._value.device}. Return the loss on the device of the inputs."
            )
        self._added.append((loss, steps))
        if may_change or loss.ndim or len(self._added) == _ADDED_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        summed = self._value
        assert summed is not None, "set as the run begins"
        for loss, steps in self._added:
            # On the CPU a finite loss is seen without the four operations below.
            if steps is not None and not (loss.is_cpu and not loss.ndim and math.isfinite(loss.item())):
                # `where` instead of a branch, which would synchronise with the device. NaN and inf less themselves are
                # NaN, which is not equal to itself: two kernels, where torch.isfinite launches four.
                difference = loss - loss
                loss = loss.where(difference == difference, divide_scalar(summed, steps))
            if self._in_float32:
                summed += loss
            else:
                summed = summed + loss
        self.value = summed


# Counting loss, floating-point operations and update steps, and the position in the data.


@dataclass(slots=True)
class ModelFacts:
    """The facts of a model that its floating-point operations are computed from."""

    model: Any
    main_input: str | None
    """The name of the input that holds its tokens; None if it does not count its parameters."""
    _outside_embeddings: int | None = None

    def parameters_outside_embeddings(self, *, recounts: bool) -> int:
        """Return the number of parameters without embeddings; computed once.

        Args:
            recounts: Compute it each time: with ZeRO-3 the number on a rank changes from step to step.
        """
        if self._outside_embeddings is None or recounts:
            self._outside_embeddings = int(self.model.num_parameters(exclude_embeddings=True))
        return self._outside_embeddings


@dataclass(slots=True)
class RunCounters:
    """The counts of a run, and what else of it the Trainer has as attributes with transformers' names.

    Some are unset at first, as upstream's are, and raise an AttributeError until they are assigned.
    """

    train_batch_size: int = field(init=False, repr=False, compare=False)
    """Samples of a training batch on each device; a trial, a checkpoint or a search for their number may change it."""
    trial: Trial | None = None
    """The trial of a hyperparameter search whose values the arguments have; None outside one."""
    created_schedule: bool = False
    """Whether the Trainer has made the learning-rate schedule itself, so that the next fit makes another."""
    updates_model: bool = False
    """Whether the optimizer of the last fit updates parameters of its model, not of something beside it alone."""
    created_optimizer: bool = False
    """Whether the Trainer has made the optimizer itself, so that it makes another for another model."""
    loss_shifts_labels: bool = False
    """Whether the model's loss compares each prediction with the next label, so that the first one is not counted."""
    signature_columns: list[str] | None = None
    """The columns that the model takes; None until a dataset is asked for them."""
    eval_loaders: dict[str, DataLoader[Any]] = field(init=False, repr=False, compare=False)
    """The evaluation loaders with persistent workers, which are kept."""
    memory: TrainerMemoryTracker = field(init=False, repr=False, compare=False)
    """Measures the memory of each stage."""
    past: Any = field(init=False, repr=False, compare=False)
    """The past state of a model with memory, the next batch's ``mems``; unset outside of a pass over data."""
    total_loss_scalar: float = 0.0
    """Loss summed over the run up to the last log."""
    last_logged_step: int = 0
    """Update step of the last log."""
    initial_step: int = 0
    """Update step that this run resumed from, 0 for a new one."""
    initial_tokens: int = 0
    """Input tokens seen before this run was resumed."""
    train_tokens: float | None = None
    """Input tokens of the whole run, counted ahead of it; None if the arguments do not ask for that."""
    flos: float = 0
    """Floating-point operations since they were last added to the state."""
    losses: LossSum = field(default_factory=LossSum)
    """Losses since the last log; their sum is ``tr_loss``."""
    _facts: ModelFacts | None = field(default=None, repr=False)

    def forget_past(self) -> None:
        """Unset the past state, if there is one."""
        if hasattr(self, "past"):
            del self.past

    def begin(self, state: TrainerState, losses: LossSum) -> None:
        """Begin the counts of a run whose state is ``state``."""
        self.initial_tokens = state.num_input_tokens_seen
        self.initial_step = self.last_logged_step = state.global_step
        self.losses, self.total_loss_scalar = losses, 0.0
        self._facts = None  # the model may have grown since the last run

    @property
    def tr_loss(self) -> Tensor | None:
        """Loss summed since the last log, ``()``; overrides may zero it in place. None before a run."""
        return self.losses.value

    @tr_loss.setter
    def tr_loss(self, value: Tensor | None) -> None:
        self.losses.value = value

    def facts_of(self, model: nn.Module) -> ModelFacts:
        """Return the facts of ``model``.

        Looked up once: a module raises an error for each attribute that it lacks, which takes as long as a small layer.
        """
        if self._facts is None or self._facts.model is not model:
            name = getattr(model, "main_input_name", "input_ids") if hasattr(model, "num_parameters") else None
            self._facts = ModelFacts(model, name)
        return self._facts


def _checked_flos(flos: Any) -> float:
    """Return what ``floating_point_ops`` of the Trainer returned.

    Raises:
        OverrideError: If that is no number.
    """
    check_returned(hasattr(flos, "__float__"), flos, "floating_point_ops", "their number, 0 if it is not known")
    return float(flos)


class Progress:
    """Counts batches and update steps; sets ``global_step``, ``epoch`` and the position in the data.

    Args:
        trainer: The Trainer.
        counters: The run's counts.

    Attributes:
        counters: The run's counts.
        offset: How the samples are counted, if the run was resumed with other windows.
        start_time: When the run started, in seconds of ``time.time``.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, counters: RunCounters) -> None:
        self._trainer = trainer
        self.counters = counters
        self.offset = ResumeOffset()
        self.start_time = 0.0
        self._done: tuple[int, int, int] | None = None
        """Completed epochs, batches of the current one that are done, and all of it, after the last update step."""

    def begin(self, offset: ResumeOffset) -> None:
        """Initialise the counts of a fit from the state at its start, and from ``offset``."""
        trainer, self.offset, self._done = self._trainer, offset, None
        zero = torch.tensor(0.0, device=trainer.args.device)
        self.counters.begin(trainer.state, LossSum(zero, in_float32=trainer.semantics.sums_loss_in_float32))

    def start_clock(self) -> None:
        """Store the start time."""
        self.start_time = time.time()

    def count_batch(self, trainer: Trainer, loss: Tensor, batch: dict[str, Any]) -> None:
        """Count a batch's share of the window's loss, its floating-point operations, and tokens not yet counted."""
        counters = self.counters
        since_log = 1 + trainer.state.global_step - counters.last_logged_step
        steps = since_log if trainer.args.logging_nan_inf_filter else None
        counters.losses.add(loss, steps, may_change=is_overridden(trainer.training_step))  # ours returns a new one
        flos = trainer.floating_point_ops(batch)
        counters.flos += float(flos) if type(flos) is int else _checked_flos(flos)
        if trainer.semantics.counts_tokens_after_batch:
            trainer._track_num_input_tokens(batch)

    def count_update(self, trainer: Trainer, window: Window, global_step: int) -> None:
        """Count the update step of ``window``, after which Lightning's is ``global_step``."""
        state = trainer.state
        state.global_step = global_step
        done = window.batches_before + len(window.batches)
        state.epoch = window.epoch + done / window.epoch_batches
        self._done = window.epoch, done, window.epoch_batches

    def position_to_resume(self) -> DataPosition | None:
        """Return where a resumed run continues: with the next epoch, if a callback has ended this one early.

        None before the first update step.
        """
        plan = self._trainer.run_plan
        if self._done is None or plan is None:
            return None
        epoch, batches, length = self._done
        position = DataPosition.after(replace(plan, batches_per_epoch=length), epoch, batches, self.offset)
        return position.at_next_epoch() if self._trainer.control.should_epoch_stop else position


# Input tokens: counting them batch by batch or ahead of training, and their numbers in the log.


def count_train_tokens(trainer: Trainer, plan: RunPlan, loader: Iterable[Any]) -> float | None:
    """Return the input tokens of the whole run, from a pass over ``loader``; None if they are not needed.

    The pass draws random numbers, as an epoch does. If ``max_steps`` says when the run ends, it is one batch long, and
    that batch's tokens stand for those of all.

    Args:
        trainer: The Trainer.
        plan: The numbers of the run.
        loader: The train loader.
    """
    args = trainer.args
    if trainer.semantics.counts_tokens_as_seen or not args.include_tokens_per_second:
        return None
    if (epochs := epochs_to_train(args)) is not None:
        limited = has_length(loader) and plan.batches_per_epoch < len(loader)
        read = FirstBatches(loader, plan.batches_per_epoch, args.world_size) if limited else loader
        return trainer.num_tokens(read, None) * epochs
    return trainer.num_tokens(loader, plan.max_steps) * args.gradient_accumulation_steps


def track_input_tokens(trainer: Trainer, inputs: dict[str, Any], warn_once: WarnOnce) -> None:
    """Add the tokens of one batch, over all ranks, to ``state.num_input_tokens_seen``."""
    kind = trainer.args.include_num_input_tokens_seen
    name = getattr(trainer.model, "main_input_name", "input_ids")
    if name not in inputs:
        text = (
            f"Tried to track the number of tokens seen, but batches have no `{name}`: set the model's "
            f"`main_input_name` to the name of the inputs, or remove `include_num_input_tokens_seen={kind!r}`."
        )
        warn_once.in_log(logger, text)
        return
    tokens: Any = inputs[name].numel()
    pad = getattr(trainer.processing_class, "pad_token_id", None)
    if kind == "non_padding" and "attention_mask" in inputs:
        tokens = inputs["attention_mask"].sum()
    elif kind == "non_padding" and pad is not None:
        tokens = (inputs[name] != pad).sum()
    elif kind == "non_padding":
        text = (
            "Could not determine method to count non-padding tokens, so all are counted. For "
            "`include_num_input_tokens_seen='non_padding'` batches must have an `attention_mask`, or a "
            "`processing_class` a `pad_token_id`."
        )
        warn_once.in_log(logger, text)
    if isinstance(tokens, int) and trainer.args.world_size == 1:  # nothing to wait for
        trainer.state.num_input_tokens_seen += tokens
        return
    counted = torch.as_tensor(tokens, device=trainer.args.device, dtype=torch.int64)
    trainer.state.num_input_tokens_seen += int(trainer.accelerator.gather(counted).sum()) // trainer.get_cp_size()


# Evaluations at times that no training argument can express.


class EvaluationTiming:
    """Asks for an evaluation, by ``control.should_evaluate``, when one is due.

    A fraction or a number of update steps is counted from the beginning of each epoch. A time is measured by each rank
    from the end of its last evaluation; all evaluate once one finds that it is due, which they exchange
    twice a second, and ten times within a shorter interval.

    Args:
        trainer: The Trainer.
        times: When the run evaluates.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, times: EvaluationTimes) -> None:
        self._trainer = trainer
        self._times = times
        self._steps: int | None = None
        self._evaluated_at = 0.0
        self._was_due = False
        interval = times.every.total_seconds() if isinstance(times.every, timedelta) else math.inf
        self._votes = PacedVotes(min(0.5, interval / 10))

    def begin(self) -> None:
        """Count or measure from here."""
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        self._steps = steps_between(self._times, plan)
        self._evaluated_at = time.monotonic()

    def begin_window(self) -> None:
        """Measure from here if there was an evaluation since the last update step."""
        if self._was_due:
            self._evaluated_at, self._was_due = time.monotonic(), False

    def request_after_update(self, window: Window) -> None:
        """Request an evaluation after the update step of ``window``, if it is due."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end:
            return
        is_due = self._is_time() if self._steps is None else self._is_step(window, self._steps)
        if is_due and times.has_epoch(window.epoch) and trainer.state.global_step >= times.delay:
            trainer.control.should_evaluate = True
            self._was_due = True

    def request_after_epoch(self, epoch: int) -> None:
        """Request an evaluation after ``epoch``, if it is one with evaluations."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end and times.has_epoch(epoch) and (trainer.state.epoch or 0) >= times.delay:
            trainer.control.should_evaluate = True

    def _is_step(self, window: Window, steps: int) -> bool:
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        done = window.batches_before + len(window.batches)
        return math.ceil(done / plan.accumulate) % steps == 0

    def _is_time(self) -> bool:
        assert isinstance(self._times.every, timedelta), "neither steps nor epochs count"
        is_due = time.monotonic() - self._evaluated_at >= self._times.every.total_seconds()
        timeout = self._trainer.args.ddp_timeout_delta
        return bool(self._votes.max_over_ranks(self._trainer.state.global_step, int(is_due), timeout))


# Log records of a run that begins or resumes: the facts that transformers logs, at level info.


def log_start(trainer: Trainer, batch_size: int, folder: str | None, start: ResumePosition | None) -> None:
    """Log the numbers of the run, and the start of a resumed one.

    Args:
        trainer: The Trainer.
        batch_size: Samples of a batch on each device.
        folder: The checkpoint to resume from, None without one.
        start: Start of a resumed run in the data; None for the beginning.
    """
    plan = trainer.run_plan
    if plan is None or not logger.isEnabledFor(logging.INFO):
        return
    logger.info("***** Running training *****")
    resumed = () if folder is None or start is None else _resumed(trainer, folder, start)
    for line in (*_numbers(trainer, batch_size, plan), *resumed):
        logger.info("  %s", line)


def _resumed(trainer: Trainer, folder: str, start: ResumePosition) -> Iterator[str]:
    yield f"Resuming training from checkpoint {folder}"
    yield f"Continuing training from epoch {start.epoch}"
    yield f"Continuing training from global step {trainer.state.global_step}"
    if not trainer.args.ignore_data_skip:
        skipped = f"the first {start.epoch} epochs then the first {start.batches} batches"
        yield f"Fast-forwarding the dataloader, will skip {skipped}"


def _numbers(trainer: Trainer, batch_size: int, plan: RunPlan) -> Iterator[str]:
    per_device = trainer.args.per_device_train_batch_size
    yield f"Num examples = {plan.num_examples:,}"
    yield f"Num Epochs = {plan.num_train_epochs:,}"
    yield f"Num update steps per epoch = {plan.update_steps_per_epoch:,}"
    yield f"Instantaneous batch size per device = {per_device:,}"
    if batch_size != per_device:
        yield f"The batch size has been adjusted to: {batch_size:,}"
    total = plan.samples_per_update_step
    yield f"Total train batch size (w. parallel, distributed & accumulation) = {total:,}"
    yield f"Gradient Accumulation steps = {plan.accumulate}"
    yield f"Total optimization steps = {plan.max_steps:,}"
    trainable = count_parameters(trainer.model, trainable_only=True, over_all_ranks=True)
    yield f"Number of trainable parameters = {trainable:,}"


# Warnings in the middle of a run: changed accumulation, unfrozen parameters.


def warn_of_changed_accumulation(trainer: Trainer, warn_once: WarnOnce) -> None:
    """Warn, once per Trainer, if the arguments have another number of accumulated batches than the plan."""
    assert trainer.run_plan is not None, "a fit has a plan"
    planned, now = trainer.run_plan.accumulate, trainer.args.gradient_accumulation_steps
    if now != planned:
        warn_once(
            f"`gradient_accumulation_steps` was changed from {planned} to {now} during training. This run keeps "
            f"{planned}: its update steps were planned when it started. Change it before `train`, or stop the run and "
            "resume it with the new value."
        )


class FrozenParameters:
    """The parameters that were frozen as the optimizer was created, which therefore may not have them.

    Args:
        warn_once: Warns.
    """

    def __init__(self, warn_once: WarnOnce) -> None:
        self._warn_once = warn_once
        self._names: frozenset[str] = frozenset()

    def remember(self, model: nn.Module, traits: StrategyTraits) -> None:
        """Note the frozen ones of ``model``; none where ``traits`` say that the optimizer may have other tensors."""
        if not (traits.has_engine or traits.shards_model):
            parameters = model.named_parameters()
            self._names = frozenset(name for name, parameter in parameters if not parameter.requires_grad)

    def warn_of_unfrozen(self, trainer: Trainer) -> None:
        """Warn if a callback has unfrozen one of them and the optimizer does not have it."""
        if not self._names:
            return
        parameters = trainer.model.named_parameters()
        unfrozen = {name: each for name, each in parameters if name in self._names and each.requires_grad}
        if not unfrozen:
            return
        groups = getattr(trainer.optimizer, "param_groups", ())  # None if the script has set it
        updated = {id(each) for group in groups for each in group["params"]}
        names = [name for name, each in unfrozen.items() if id(each) not in updated]
        if names:
            self._names = frozenset()
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._warn_once(
                f"Unfrozen during training: `{names[0]}`{others}. The optimizer was created without these parameters: "
                "as in transformers they are never updated, while their gradients count in `grad_norm` and in "
                "clipping by `max_grad_norm`. Unfreeze them before `train`, or with a `BaseFinetuning` callback of "
                "Lightning, which adds them to the optimizer."
            )
