"""Creating a Trainer's optimizer and learning-rate schedule; learning rates and parameter groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.errors import NoOptimizerError
from hf_compat.optim.external import keep_embeddings_in_32_bits
from hf_compat.optim.groups import groups_by_mesh, parameter_groups
from hf_compat.optim.in_backward import leave_step_to_backward, notices
from hf_compat.optim.prepared import unwrap_optimizer
from hf_compat.optim.schedulers import build_scheduler, steps_on_metric
from hf_compat.overriding import call_as_defined, check_returned

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["create_optimizer", "create_scheduler", "learning_rate", "optimizer_group", "optimizer_of", "scheduler_of"]


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
        chosen, kwargs = _checked(
            call_as_defined(trainer.get_optimizer_cls_and_kwargs, ("args", args), ("model", target))
        )
    trainer.optimizer = _instantiate(trainer, chosen, kwargs, groups, target)
    if "bitsandbytes" in str(chosen) and kwargs.get("optim_bits") == 8:
        keep_embeddings_in_32_bits(target)
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


def learning_rate(trainer: Trainer) -> float:
    """Return the current learning rate of the first parameter group."""
    scheduler = scheduler_of(trainer)
    rate: Any = (
        optimizer_of(trainer).param_groups[0]["lr"] if steps_on_metric(scheduler) else scheduler.get_last_lr()[0]
    )
    return rate.item() if isinstance(rate, Tensor) else rate


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


def optimizer_group(trainer: Trainer, param: str | nn.Parameter | None) -> dict[str, Any] | list[Any] | None:
    """Return the parameter group of ``param``, None if it has none; for None, the parameters of all groups."""
    groups = optimizer_of(trainer).param_groups
    if param is None:
        return [group["params"] for group in groups]
    return next((group for group in groups if any(item is param for item in group["params"])), None)
