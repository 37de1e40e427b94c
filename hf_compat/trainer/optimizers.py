"""The optimizer and the learning-rate schedule of a Trainer, by name; learning rates and parameter groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.optim.external import keep_embeddings_in_32_bits
from hf_compat.optim.groups import parameter_groups
from hf_compat.optim.in_backward import leave_step_to_backward, notices
from hf_compat.optim.schedulers import build_scheduler, steps_on_metric
from hf_compat.overriding import call_as_defined

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["create_optimizer", "create_scheduler", "learning_rate", "optimizer_group", "optimizer_of"]


def create_optimizer(trainer: Trainer, model: nn.Module | None) -> None:
    """Set ``optimizer``, unless there is one, to the one that ``optim`` names; see the Trainer's method."""
    if trainer.optimizer is not None:
        return
    target: nn.Module = trainer.model if model is None else model
    args = trainer.args
    groups: Any = parameter_groups(target, args.weight_decay, trainer.get_decay_parameter_names(target))
    if trainer.optimizer_cls_and_kwargs is not None:
        chosen, kwargs = trainer.optimizer_cls_and_kwargs
    else:
        chosen, kwargs = call_as_defined(trainer.get_optimizer_cls_and_kwargs, ("args", args), ("model", target))
    trainer.optimizer = _instantiate(trainer, chosen, kwargs, groups, target)
    if "bitsandbytes" in str(chosen) and kwargs.get("optim_bits") == 8:
        keep_embeddings_in_32_bits(target)
    if hasattr(trainer.optimizer, "fused_backward"):
        leave_step_to_backward(trainer.optimizer)
    for notice in notices(args, trainer.optimizer, trainer.semantics):
        trainer._warn_once(notice)


def _instantiate(trainer: Trainer, chosen: Any, kwargs: dict[str, Any], groups: Any, model: nn.Module) -> Any:
    """Return an optimizer of ``groups``, or of what ``kwargs`` hold in their place; a factory gets the model."""
    is_class = isinstance(chosen, type) and issubclass(chosen, Optimizer)
    if trainer.semantics.calls_optimizer_factories and not is_class:
        return chosen()(model, **kwargs)
    for own in ("params", "model", "optimizer_dict"):
        groups = kwargs.pop(own, groups)
    return chosen(groups, **kwargs)


def create_scheduler(trainer: Trainer, num_training_steps: int, optimizer: Optimizer | None) -> None:
    """Set ``lr_scheduler``, unless there is one, to the one that ``lr_scheduler_type`` names."""
    if trainer.lr_scheduler is not None:
        return
    args = trainer.args
    trainer.lr_scheduler = build_scheduler(
        args.lr_scheduler_type,
        trainer.optimizer if optimizer is None else optimizer,
        num_warmup_steps=args.get_warmup_steps(num_training_steps),
        num_training_steps=num_training_steps,
        kwargs=args.lr_scheduler_kwargs,
        semantics=trainer.semantics,
    )
    trainer._created_lr_scheduler = True


def learning_rate(trainer: Trainer) -> float:
    """Return the learning rate of the first parameter group, as last scheduled."""
    scheduler = trainer.lr_scheduler
    rate: Any = trainer.optimizer.param_groups[0]["lr"] if steps_on_metric(scheduler) else scheduler.get_last_lr()[0]
    return rate.item() if isinstance(rate, Tensor) else rate


def optimizer_of(trainer: Trainer) -> Any:
    """Return the optimizer.

    Raises:
        ValueError: If there is none yet.
    """
    if trainer.optimizer is None:
        raise ValueError("The Trainer has no optimizer yet; call `train` or `create_optimizer` first.")
    return trainer.optimizer


def optimizer_group(trainer: Trainer, param: str | nn.Parameter | None) -> Any:
    """Return the parameter group of ``param``, None if it is in none; all groups' parameters for None."""
    groups = optimizer_of(trainer).param_groups
    if param is None:
        return [group["params"] for group in groups]
    return next((group for group in groups if any(item is param for item in group["params"])), None)
