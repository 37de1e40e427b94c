"""Counting loss, floating-point operations and update steps, and the position in the data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_compat.data.windows import Window
from hf_compat.memory import TrainerMemoryTracker, WeakAttribute
from hf_compat.overriding import check_returned
from hf_compat.plan import DataPosition, ResumeOffset, RunPlan
from hf_compat.run.training_logs import LossSum

if TYPE_CHECKING:
    from hf_compat.state import TrainerState
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["Progress", "RunCounters", "floating_point_ops", "store_flos"]


@dataclass(slots=True)
class _KnownModel:
    """Facts of a model that its floating-point operations are computed from."""

    model: nn.Module
    main_input: str | None
    parameters: int | None = None


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
    _known: _KnownModel | None = field(default=None, repr=False)

    def forget_past(self) -> None:
        """Unset the past state, if there is one."""
        if hasattr(self, "past"):
            del self.past

    def begin(self, state: TrainerState, losses: LossSum) -> None:
        """Begin the counts of a run whose state is ``state``."""
        self.initial_tokens = state.num_input_tokens_seen
        self.initial_step = self.last_logged_step = state.global_step
        self.losses = losses
        self.total_loss_scalar = 0.0

    @property
    def tr_loss(self) -> Tensor | None:
        """Loss summed since the last log, ``()``; overrides may zero it in place. None before a run."""
        return self.losses.value

    @tr_loss.setter
    def tr_loss(self, value: Tensor | None) -> None:
        self.losses.value = value

    def main_input(self, model: nn.Module) -> str | None:
        """Return the name of the input that holds ``model``'s tokens, None if ``model`` does not count its parameters.

        Looked up once: a module raises an error for each attribute that it lacks, which takes as long as a small layer.
        """
        return self._of(model).main_input

    def parameters_outside_embeddings(self, model: Any, *, recounts: bool) -> int:
        """Return the number of ``model``'s parameters without its embeddings; computed once.

        Args:
            model: A model with ``num_parameters``.
            recounts: Compute it each time: with ZeRO-3 the number on a rank changes from step to step.
        """
        known = self._of(model)
        if known.parameters is None or recounts:
            known.parameters = int(model.num_parameters(exclude_embeddings=True))
        return known.parameters

    def _of(self, model: nn.Module) -> _KnownModel:
        if self._known is None or self._known.model is not model:
            name = getattr(model, "main_input_name", "input_ids") if hasattr(model, "num_parameters") else None
            self._known = _KnownModel(model, name)
        return self._known


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
        plan: The plan of the run, set before the fit.
        offset: How the samples are counted, if the run was resumed with other windows.
        start_time: When the run started, in seconds of ``time.time``.
        position: The position in the data; None before the first update step.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, counters: RunCounters) -> None:
        self._trainer = trainer
        self.counters = counters
        self.plan: RunPlan | None = None
        self.offset = ResumeOffset()
        self.start_time = 0.0
        self.position: DataPosition | None = None

    def begin(self) -> None:
        """Initialise the counts from the state at the start of the run."""
        trainer = self._trainer
        zero = torch.tensor(0.0, device=trainer.args.device)
        self.counters.begin(trainer.state, LossSum(zero, in_float32=trainer.semantics.sums_loss_in_float32))

    def start_clock(self) -> None:
        """Store the start time."""
        self.start_time = time.time()

    def count_batch(self, trainer: Trainer, loss: Tensor, batch: dict[str, Any]) -> None:
        """Count a batch's share of the window's loss, its floating-point operations, and tokens not yet counted."""
        counters = self.counters
        since_log = 1 + trainer.state.global_step - counters.last_logged_step
        counters.losses.add(loss, since_log if trainer.args.logging_nan_inf_filter else None)
        flos = trainer.floating_point_ops(batch)
        counters.flos += float(flos) if type(flos) is int else _checked_flos(flos)
        if trainer.semantics.counts_tokens_after_batch:
            trainer._track_num_input_tokens(batch)

    def count_update(self, trainer: Trainer, window: Window, global_step: int) -> None:
        """Count the update step of ``window``, after which Lightning's is ``global_step``."""
        assert self.plan is not None, "set before the fit"
        state, plan = trainer.state, self.plan
        state.global_step = global_step
        done = window.batches_before + len(window.batches)
        state.epoch = window.epoch + done / plan.batches_per_epoch
        self.position = DataPosition.after(plan, window.epoch, done, self.offset)

    def position_to_resume(self) -> DataPosition | None:
        """Return where a resumed run continues: with the next epoch, if a callback has ended this one early."""
        if self.position is None or not self._trainer.control.should_epoch_stop:
            return self.position
        return self.position.at_next_epoch()


def store_flos(trainer: Trainer, counters: RunCounters) -> None:
    """Add the floating-point operations of all ranks since the last call to ``state.total_flos``."""
    flos = counters.flos
    if trainer.args.world_size > 1:  # summed in float32, as in transformers
        summed = trainer.accelerator.gather(Tensor([flos]).to(trainer.args.device)).sum().item()
        flos = summed / trainer.get_cp_size()  # each rank has counted whole sequences
    trainer.state.total_flos += flos
    counters.flos = 0


def floating_point_ops(trainer: Trainer, counters: RunCounters, inputs: dict[str, Any], *, recounts: bool) -> int:
    """Return the floating-point operations of forward and backward pass of one batch; 0 if the model has no estimate.

    Args:
        trainer: The Trainer.
        counters: Caches the model's main input and number of parameters.
        inputs: The batch.
        recounts: As for :meth:`RunCounters.parameters_outside_embeddings`.
    """
    model = trainer.model
    if not trainer.semantics.counts_flops_per_token:
        return int(model.floating_point_ops(inputs)) if hasattr(model, "floating_point_ops") else 0
    name = counters.main_input(model)
    if name is not None and name in inputs:
        return 6 * int(inputs[name].numel()) * counters.parameters_outside_embeddings(model, recounts=recounts)
    return 0
