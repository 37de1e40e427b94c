"""The Trainer's optimizer, learning-rate schedule and gradient clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.errors import ArgumentsError
from hf_compat.model_facts import count_parameters
from hf_compat.optim.external import keep_embeddings_in_32_bits
from hf_compat.optim.groups import decay_parameter_names, parameter_groups
from hf_compat.optim.in_backward import leave_step_to_backward, notices
from hf_compat.optim.optim_args import parse_optim_args
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from hf_compat.optim.schedulers import build_scheduler, unknown_scheduler_kwargs
from hf_compat.overriding import WarnOnce, call_as_defined, is_overridden
from hf_compat.trainer.data import DataMethods

__all__ = ["OptimizerMethods"]


class OptimizerMethods(DataMethods):
    """Optimizer and schedule by name, learning rates, clipping."""

    _created_lr_scheduler: bool = False
    _grad_norm: Tensor | float | None = None

    def _optimization_problems(self) -> list[str]:
        """Return what the optimizer and the schedule that ``args`` name cannot read, unless overrides do."""
        args = self.args
        problems: list[str] = []
        if (
            self.optimizer is None
            and self.optimizer_cls_and_kwargs is None
            and self._is_own("create_optimizer_and_scheduler", "create_optimizer", "get_optimizer_cls_and_kwargs")
        ):
            try:
                parse_optim_args(args.optim_args)
            except ArgumentsError as error:
                problems.extend(error.problems)
        if self.lr_scheduler is None and self._is_own("create_optimizer_and_scheduler", "create_scheduler"):
            problems.extend(unknown_scheduler_kwargs(args.lr_scheduler_type, args.lr_scheduler_kwargs, self.semantics))
        return problems

    def _given_optimizer_problems(self) -> list[str]:
        """Return why an optimizer or a schedule that was passed in cannot be used."""
        problems: list[str] = []
        if self.model_init is not None and any(item is not None for item in (self.optimizer, self.lr_scheduler)):
            problems.append(
                "`model_init` makes a new model at each `train`, which `optimizers` would not know: override "
                "`create_optimizer` instead, or pass `optimizer_cls_and_kwargs`."
            )
        if self.optimizer is not None and self.optimizer_cls_and_kwargs is not None:
            problems.append("`optimizers` and `optimizer_cls_and_kwargs` were both passed: choose one.")
        return problems

    def _is_own(self, *names: str) -> bool:
        """Return whether no subclass overrides any of these methods."""
        return not is_overridden(self, OptimizerMethods, *names)

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set ``optimizer`` and ``lr_scheduler`` for a run of ``num_training_steps`` update steps."""
        self.create_optimizer()
        call_as_defined(self.create_scheduler, num_training_steps=num_training_steps, optimizer=self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Set and return ``optimizer``: the one passed in, else the one that ``args.optim`` names.

        Weights are in two groups, with and without weight decay.
        """
        if self.optimizer is None:
            target: nn.Module = self.model if model is None else model
            groups: Any = parameter_groups(target, self.args.weight_decay, self.get_decay_parameter_names(target))
            if self.optimizer_cls_and_kwargs is not None:
                optimizer_class, kwargs = self.optimizer_cls_and_kwargs
            else:
                optimizer_class, kwargs = call_as_defined(
                    self.get_optimizer_cls_and_kwargs, ("args", self.args), ("model", target)
                )
            self.optimizer = self._instantiate_optimizer(optimizer_class, kwargs, groups, target)
            if "bitsandbytes" in str(optimizer_class) and kwargs.get("optim_bits") == 8:
                keep_embeddings_in_32_bits(target)
            if hasattr(self.optimizer, "fused_backward"):
                leave_step_to_backward(self.optimizer)
            for notice in notices(self.args, self.optimizer, self.semantics):
                self._warn_once(notice)
        return self.optimizer  # type: ignore[no-any-return]

    def _instantiate_optimizer(self, chosen: Any, kwargs: dict[str, Any], groups: Any, model: nn.Module) -> Any:
        """Return an optimizer of ``groups``, or of what ``kwargs`` hold in their place; a factory gets the model."""
        is_class = isinstance(chosen, type) and issubclass(chosen, Optimizer)
        if self.semantics.calls_optimizer_factories and not is_class:
            return chosen()(model, **kwargs)
        for own in ("params", "model", "optimizer_dict"):
            groups = kwargs.pop(own, groups)
        return chosen(groups, **kwargs)

    def _warn_once(self, message: str) -> None:
        self._notices(message, stacklevel=3)

    _notices: WarnOnce

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        """Set and return ``lr_scheduler``: the one passed in, else the one that ``args.lr_scheduler_type`` names."""
        if self.lr_scheduler is None:
            self.lr_scheduler = build_scheduler(
                self.args.lr_scheduler_type,
                self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                kwargs=self.args.lr_scheduler_kwargs,
                semantics=self.semantics,
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the class and keywords of the optimizer that ``args`` names."""
        return optimizer_class_and_kwargs(args, model, semantics=resolve_semantics(args.semantics))

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of ``model``'s parameters that decay: all but biases and those of normalisations."""
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        """Return how many numbers training may change."""
        return count_parameters(self.model, trainable_only=True)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each parameter group.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        return [group["lr"] for group in self._optimizer_or_error().param_groups]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """Return the parameter group of ``param``, or all groups' parameters.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        groups = self._optimizer_or_error().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(item is param for item in group["params"])), None)

    def _optimizer_or_error(self) -> Any:
        if self.optimizer is None:
            raise ValueError("The Trainer has no optimizer yet; call `train` or `create_optimizer` first.")
        return self.optimizer

    def _steps_on_metric(self) -> bool:
        """Return whether the schedule is stepped by evaluations rather than by updates."""
        return isinstance(self.lr_scheduler, ReduceLROnPlateau) or type(self.lr_scheduler).__name__ == "GreedyLR"

    def _get_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group, as last scheduled."""
        on_metric = self._steps_on_metric()
        rate = self.optimizer.param_groups[0]["lr"] if on_metric else self.lr_scheduler.get_last_lr()[0]
        return rate.item() if isinstance(rate, torch.Tensor) else rate

    def _clip_gradients(self) -> None:
        """Clip the gradients to ``max_grad_norm`` and keep their norm for the next log."""
        model = self.model_wrapped
        clips = self.args.max_grad_norm is not None and self.args.max_grad_norm > 0
        norm = self._clip_grad_norm(model) if clips else None
        self._grad_norm = self._get_grad_norm(model, grad_norm=norm) if self.semantics.always_logs_grad_norm else norm

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip the gradients to ``max_grad_norm``; return their norm before."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        """Return ``grad_norm``, measured if it is None."""
        if grad_norm is None:
            return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        return grad_norm
