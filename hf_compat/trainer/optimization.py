"""The optimizer and the schedule of a run: created by the Trainer's methods, stepped, gradients clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_
from torch.optim import Optimizer

from hf_compat.engine.internals.strategies import replace_optimizer
from hf_compat.errors import NoOptimizerError, TrainerSetupError
from hf_compat.memory import WeakAttribute
from hf_compat.optim.optimizers import (
    check_backward,
    keep_embeddings_in_32_bits,
    leave_step_to_backward,
    notices,
    updates_in_backward,
)
from hf_compat.optim.prepared import groups_by_mesh, parameter_groups, prepare_optimizer, unwrap_optimizer
from hf_compat.optim.schedulers import build_scheduler, get_scheduler, steps_on_metric
from hf_compat.overriding import call_override, check_returned

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch.optim.lr_scheduler import LRScheduler

    from hf_compat.engine.strategies.base import ModelStrategy
    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

# The optimizer of a run: created by the Trainer's methods, stepped, its gradients clipped, its schedule stepped.


Norm = Tensor | float | None
"""A gradient norm before clipping, ``()``; None if it was not computed."""


class RunOptimization:
    """Creates optimizer and learning-rate schedule of a run, by the Trainer's overridable methods.

    Args:
        run: The run.
        num_training_steps: Update steps of the run, warm-up included.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun, num_training_steps: int) -> None:
        self._run, self._trainer = run, run.trainer
        self._starts_unwrapped = run.trainer.model_wrapped is run.trainer.model
        self.num_training_steps = num_training_steps

    def create_optimizer(self) -> Optimizer:
        """Create and return a new optimizer; that of an earlier run belongs to its engine."""
        trainer: Any = self._trainer
        trainer.optimizer = trainer.lr_scheduler = None
        trainer.create_optimizer()
        return trainer.optimizer  # type: ignore[no-any-return]

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Create and return a new schedule for ``optimizer``, which becomes the Trainer's."""
        trainer: Any = self._trainer
        trainer.optimizer, trainer.lr_scheduler = optimizer, None
        call_override(trainer.create_scheduler, num_training_steps=self.num_training_steps, optimizer=optimizer)
        return trainer.lr_scheduler  # type: ignore[no-any-return]

    @contextmanager
    def wrapping(self) -> Iterator[Callable[[], None]]:
        """Context in which what it yields calls ``_wrap_model``, once; afterwards the Trainer has the module to train.

        As in transformers, methods that are called inside find in ``model_wrapped`` what was there before the fit.
        """
        trainer, wrapped = self._trainer, []
        of_strategy = trainer.model_wrapped
        if self._starts_unwrapped:
            trainer.model_wrapped = trainer.model
        yield lambda: wrapped.append(self._run.wrap())
        trainer.model_wrapped = wrapped[0] if of_strategy is trainer.model else of_strategy

    def create_both(self) -> tuple[Any, Any]:
        """Create and return optimizer and schedule, with the methods that the emulated release calls.

        Raises:
            TrainerSetupError: If the optimizer that was passed has trained another model in an earlier fit.
        """
        trainer, counters = self._trainer, self._run.counters
        is_new = unwrap_optimizer(trainer.optimizer) is trainer.optimizer  # None, or none of an earlier fit
        if counters.updates_model and not is_new and _updates_others(trainer.optimizer, trainer.model):
            if trainer.lr_scheduler is not None or not counters.created_optimizer:
                raise TrainerSetupError(
                    f"`trainer.optimizer` ({type(trainer.optimizer).__name__}) updates no parameter of "
                    "`trainer.model`, but of the one that it has trained. Set `trainer.optimizer = "
                    "trainer.lr_scheduler = None` before `train`, which then creates new ones."
                )
            trainer.optimizer, is_new = None, True
        _check_averages(trainer.optimizer)
        if is_new:
            counters.created_optimizer = trainer.optimizer is None
        apart, steps = trainer.semantics.creates_scheduler_apart, self.num_training_steps
        with self.wrapping() as wrap:
            if apart:
                trainer.create_optimizer()
            else:
                trainer.create_optimizer_and_scheduler(num_training_steps=steps)
            wrap()
            trainer.optimizer = prepare_optimizer(trainer.optimizer, trainer.args.device, trainer.accelerator)
            if apart:  # for the optimizer in its wrapper
                trainer.create_scheduler(num_training_steps=steps)
        counters.updates_model = not _updates_others(trainer.optimizer, trainer.model)
        if not (counters.updates_model or self._run.backend.traits.shards_model):
            trainer.warn_once(
                f"`trainer.optimizer` ({type(trainer.optimizer).__name__}) updates no parameter of `trainer.model`, "
                "which stays as it is, as in transformers. To train it, create the optimizer from its parameters."
            )
        return trainer.optimizer, trainer.lr_scheduler

    def take_configured(self, pl_trainer: pl.Trainer) -> None:
        """Use the optimizer and the schedule that the module has configured; without a schedule, a constant one.

        Raises:
            TrainerSetupError: If a run cannot step them.
        """
        with self.wrapping() as wrap:
            wrap()
        optimizers, schedules = pl_trainer.optimizers, pl_trainer.lr_scheduler_configs
        if self._run.backend.traits.has_engine or len(optimizers) != 1 or len(schedules) > 1:
            raise TrainerSetupError(
                f"`configure_optimizers` returns {len(optimizers)} optimizers and {len(schedules)} schedules; a run "
                "steps one optimizer and at most one schedule, and under DeepSpeed its own. Return one of each."
            )
        if any((config.interval, config.frequency) != ("step", 1) for config in schedules):
            raise TrainerSetupError(
                "`configure_optimizers` returns a schedule that is not stepped after each update step. Return "
                "`{'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'interval': 'step'}}`."
            )
        schedule = schedules[0].scheduler if schedules else get_scheduler("constant", optimizers[0])
        self._run.take_optimizers(optimizers[0], schedule)


def _updates_others(optimizer: Any, model: nn.Module) -> bool:
    """Return whether ``optimizer`` updates parameters, none of which is ``model``'s."""
    if not isinstance(optimizer, Optimizer) or updates_in_backward(optimizer):
        return False
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return bool(updated) and updated.isdisjoint(map(id, model.parameters()))


def _check_averages(optimizer: Any) -> None:
    """Raise if an average of an earlier training is not of its parameter's shape: fused optimizers read beyond it."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return
    for parameter, state in optimizer.state.items():
        average = state.get("exp_avg", state.get("momentum_buffer"))
        # A shard has one dimension.
        if isinstance(average, Tensor) and average.ndim == parameter.ndim > 1 and average.shape != parameter.shape:
            raise TrainerSetupError(
                f"`trainer.optimizer` ({type(optimizer).__name__}) has an average of shape {tuple(average.shape)}, of "
                f"an earlier training, for a parameter that has become {tuple(parameter.shape)}. Set "
                "`trainer.optimizer = trainer.lr_scheduler = None` before `train`, which then creates new ones."
            )


class OptimizerStep:
    """Clips before a step of the Trainer's optimizer, and steps the schedule after it.

    The strategy steps ``trainer.optimizer``, which an override or a callback may replace; engines step their own.

    Args:
        shards_model: Whether the strategy's wrapper is what accelerate counts as the model.
        clip_value: Clip each element of the gradients to between minus this and this; None to clip their norm.

    Attributes:
        stepped: The Trainer's optimizer when it was last given to the strategy.
        grad_norm: The gradient norm of the last update step before clipping, which is logged; None if it was not
            computed.
        learning_rate: The learning rate of the last optimizer step, which is logged.
    """

    def __init__(self, *, shards_model: bool, clip_value: float | None) -> None:
        self._shards_model, self._clip_value = shards_model, clip_value
        self.stepped: Any = None
        self.grad_norm: Norm = None
        self.learning_rate: float | None = None

    def give_to(self, trainer: Trainer, strategy: ModelStrategy) -> None:
        """Give the strategy optimizer and schedule: an override that loads their states may have replaced them.

        Raises:
            TrainerSetupError: If the Trainer has no optimizer.
        """
        self.stepped = trainer.optimizer
        prepared = trainer.model_wrapped if self._shards_model else trainer.model
        trainer.accelerator.hold(prepared if trainer.lightning_backend.model_is_prepared else None, trainer.optimizer)
        if strategy.engine is not None:
            return
        if trainer.optimizer is None:
            raise TrainerSetupError.also(AttributeError)(
                "`trainer.optimizer` was set to None during training. Assign one, or call `create_optimizer()`."
            )
        if [unwrap_optimizer(trainer.optimizer)] != [unwrap_optimizer(each) for each in strategy.optimizers]:
            replace_optimizer(strategy, trainer.optimizer)
        for config in strategy.lr_scheduler_configs:
            config.scheduler = trainer.lr_scheduler  # type: ignore[assignment]  # None if the script has set it

    def clip(self, trainer: Trainer) -> None:
        """Clip the gradients with the Trainer's methods, and keep their norm."""
        model, most = trainer.model_wrapped, trainer.args.max_grad_norm
        if self._clip_value is not None:
            self.grad_norm = trainer._get_grad_norm(model)
            clip_grad_value_(model.parameters(), self._clip_value)
            return
        self.grad_norm = trainer._clip_grad_norm(model) if most is not None and most > 0 else None
        if trainer.semantics.always_logs_grad_norm:
            self.grad_norm = trainer._get_grad_norm(model, grad_norm=self.grad_norm)

    def step_schedule(self, trainer: Trainer) -> None:
        """Step the schedule, and keep the learning rate of the step before.

        A metric-based schedule is stepped by evaluations instead. The schedule is not stepped if the gradient scaler
        did not call the optimizer, because of an infinite gradient; fused optimizers are always called, as in
        transformers.
        """
        self.learning_rate = trainer._get_learning_rate()
        scheduler: Any = trainer.lr_scheduler
        if trainer.accelerator.optimizer_step_was_skipped or steps_on_metric(scheduler):
            return
        optimizer, rates = getattr(scheduler, "optimizer", None), getattr(scheduler, "base_lrs", None)
        if rates is None or optimizer is None or len(optimizer.param_groups) <= len(rates):
            scheduler.step()
            return
        # A callback has added groups of parameters: they keep the learning rate that it gives them.
        every = optimizer.param_groups
        optimizer.param_groups = every[: len(rates)]
        try:
            scheduler.step()
        finally:
            optimizer.param_groups = every


# Creating a Trainer's optimizer and learning-rate schedule; learning rates and parameter groups.


def create_optimizer(trainer: Trainer, model: nn.Module | None) -> None:
    """Set ``optimizer`` to the one that ``optim`` names, unless there is one; see the Trainer's method."""
    if trainer.optimizer is not None:
        return
    target: nn.Module = trainer.model if model is None else model
    args = trainer.args
    names = trainer.get_decay_parameter_names(target)
    check_returned(isinstance(names, Iterable), names, "get_decay_parameter_names", "a list of names of parameters")
    groups: Any = parameter_groups(target, args.weight_decay, frozenset(names))
    if trainer.lightning_backend.traits.groups_by_mesh:
        groups = groups_by_mesh(groups)
    if trainer.optimizer_cls_and_kwargs is not None:
        chosen, kwargs = trainer.optimizer_cls_and_kwargs
    else:
        chosen, kwargs = _checked(call_override(trainer.get_optimizer_cls_and_kwargs, "args model", args, target))
    trainer.optimizer = _instantiate(trainer, chosen, kwargs, groups, target)
    if "bitsandbytes" in str(chosen) and kwargs.get("optim_bits") == 8:
        keep_embeddings_in_32_bits(target)
    is_scaled, by_engine = trainer.accelerator.scaler is not None, trainer.lightning_backend.traits.has_engine
    check_backward(args, trainer.optimizer, is_scaled=is_scaled, by_engine=by_engine)
    if hasattr(trainer.optimizer, "fused_backward"):
        leave_step_to_backward(trainer.optimizer)
    for notice in notices(args, trainer.optimizer, trainer.semantics):
        trainer.warn_once(notice)


def _checked(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Return what ``get_optimizer_cls_and_kwargs`` of the Trainer returned.

    Raises:
        OverrideError: If that is no pair of an optimizer's class and a dict.
    """
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    fits = is_pair and callable(returned[0]) and isinstance(returned[1], dict)
    wanted = "a pair of a class and a dict of its arguments: `return optimizer_cls, optimizer_kwargs`"
    check_returned(fits, returned, "get_optimizer_cls_and_kwargs", wanted)
    return returned[0], returned[1]


def _instantiate(
    trainer: Trainer, chosen: Any, kwargs: dict[str, Any], groups: list[dict[str, Any]], model: nn.Module
) -> Any:
    """Return the optimizer of ``groups``, or of the parameters in ``kwargs``; a factory is called with the model."""
    is_class = isinstance(chosen, type) and issubclass(chosen, Optimizer)
    if trainer.semantics.calls_optimizer_factories and not is_class:
        return chosen()(model, **kwargs)
    for name in ("params", "model", "optimizer_dict"):
        groups = kwargs.pop(name, groups)
    return chosen(groups, **kwargs)


def create_scheduler(trainer: Trainer, num_training_steps: int, optimizer: Optimizer | None) -> None:
    """Set ``lr_scheduler`` to the one that ``lr_scheduler_type`` names, unless there is one.

    Raises:
        NoOptimizerError: If there is no optimizer to schedule.
    """
    if trainer.lr_scheduler is not None:
        return
    args = trainer.args
    trainer.lr_scheduler = build_scheduler(  # type: ignore[assignment]  # a GreedyLR has the methods of torch's
        args.lr_scheduler_type,
        unwrap_optimizer(optimizer_of(trainer) if optimizer is None else optimizer),  # which may outlive its wrapper
        num_warmup_steps=args.get_warmup_steps(num_training_steps),
        num_training_steps=num_training_steps,
        kwargs=args.lr_scheduler_kwargs,
        semantics=trainer.semantics,
    )
    trainer.run_counters.created_schedule = True


def optimizer_of(trainer: Trainer) -> Optimizer:
    """Return the optimizer.

    Raises:
        NoOptimizerError: If there is none yet.
    """
    if trainer.optimizer is None:
        raise NoOptimizerError("Trainer optimizer is None: call `train` or `create_optimizer` first.")
    return trainer.optimizer


def scheduler_of(trainer: Trainer) -> Any:
    """Return the learning-rate schedule.

    Raises:
        NoOptimizerError: If there is none yet.
    """
    if trainer.lr_scheduler is None:
        raise NoOptimizerError(
            "The Trainer has no learning-rate schedule yet: call `train` or `create_optimizer_and_scheduler` first."
        )
    return trainer.lr_scheduler
