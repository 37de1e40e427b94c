"""Methods of ``TrainingArguments`` that set the fields of one topic together.

Their defaults are upstream's, which are not always those of the fields.
"""

from __future__ import annotations

from typing import Self

from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.checking.reporters import tracker_names
from hf_compat.arguments.enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from hf_compat.arguments.fields.aliases import apply_checkpointing_alias, apply_warmup_ratio
from hf_compat.arguments.fields.rules import unsupported_problems
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.serialising import Serialising

__all__ = ["Setters"]


def _need_steps(strategy: str, steps: float) -> None:
    if strategy == "steps" and steps == 0:
        raise_all([Problem("steps", steps, "must be a positive number of update steps for `strategy='steps'`.")])


class Setters(Serialising):
    """Methods that set the fields of one topic and return the arguments.

    All raise ``ArgumentsError`` for ``steps=0`` with ``strategy="steps"``, ``ValueError`` for an unknown name, and
    ``UnsupportedArgumentsError`` for values that are not supported.
    """

    def _checked(self) -> Self:
        raise_all(unsupported_problems(self))
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> Self:
        """Set ``do_train`` and the training fields; ``gradient_checkpointing`` is the old name of its neighbour."""
        self.do_train = True
        self.learning_rate = learning_rate
        self.per_device_train_batch_size = batch_size
        self.weight_decay = weight_decay
        self.num_train_epochs = num_epochs
        self.max_steps = max_steps
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.seed = seed
        if gradient_checkpointing is not None:
            self.activation_checkpointing, self.gradient_checkpointing = None, gradient_checkpointing
            apply_checkpointing_alias(self, resolve_semantics(self.semantics))
        else:
            self.activation_checkpointing = self.gradient_checkpointing = activation_checkpointing
        return self._checked()

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
        jit_mode: bool = False,
    ) -> Self:
        """Set the fields of evaluation; ``do_eval`` follows from ``strategy``."""
        self.eval_strategy = IntervalStrategy(strategy)
        _need_steps(self.eval_strategy, steps)
        self.do_eval = self.eval_strategy != "no"
        self.eval_steps = steps
        self.per_device_eval_batch_size = batch_size
        self.eval_accumulation_steps = accumulation_steps
        self.eval_delay = delay or 0  # upstream leaves None, which cannot be compared with update steps
        self.prediction_loss_only = loss_only
        self.jit_mode_eval = jit_mode
        return self._checked()

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, jit_mode: bool = False) -> Self:
        """Set ``do_predict`` and the fields of prediction."""
        self.do_predict = True
        self.per_device_eval_batch_size = batch_size
        self.prediction_loss_only = loss_only
        self.jit_mode_eval = jit_mode
        return self._checked()

    def set_save(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """Set the fields of saving."""
        self.save_strategy = SaveStrategy(strategy)
        _need_steps(self.save_strategy, steps)
        self.save_steps = steps
        self.save_total_limit = total_limit
        self.save_on_each_node = on_each_node
        return self._checked()

    def set_logging(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """Set the fields of logging."""
        self.logging_strategy = IntervalStrategy(strategy)
        _need_steps(self.logging_strategy, steps)
        self.logging_steps = steps
        self.report_to, problems = tracker_names(report_to, resolve_semantics(self.semantics))
        raise_all(problems)
        self.log_level = level
        self.logging_first_step = first_step
        self.logging_nan_inf_filter = nan_inf_filter
        self.log_on_each_node = on_each_node
        self.log_level_replica = replica_level
        return self._checked()

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Set ``push_to_hub`` and the fields of the Hub."""
        self.push_to_hub = True
        self.hub_model_id = model_id
        self.hub_strategy = HubStrategy(strategy)
        self.hub_token = token
        self.hub_private_repo = private_repo
        self.hub_always_push = always_push
        self.hub_revision = revision
        return self._checked()

    def set_optimizer(
        self,
        name: str | OptimizerNames = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """Set the fields of the optimizer."""
        self.optim = OptimizerNames(name)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.adam_beta1 = beta1
        self.adam_beta2 = beta2
        self.adam_epsilon = epsilon
        self.optim_args = args
        return self._checked()

    def set_lr_scheduler(
        self,
        name: str | SchedulerType = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        warmup_ratio: float | None = None,
    ) -> Self:
        """Set the fields of the learning-rate schedule and the length of the run."""
        self.lr_scheduler_type = SchedulerType(name)
        self.num_train_epochs = num_epochs
        self.max_steps = max_steps
        self.warmup_steps = warmup_steps
        self.warmup_ratio = warmup_ratio
        apply_warmup_ratio(self, resolve_semantics(self.semantics))
        return self._checked()

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """Set the fields of the data loaders and ``data_seed``."""
        self.per_device_train_batch_size = train_batch_size
        self.per_device_eval_batch_size = eval_batch_size
        self.dataloader_drop_last = drop_last
        self.dataloader_num_workers = num_workers
        self.dataloader_pin_memory = pin_memory
        self.dataloader_persistent_workers = persistent_workers
        self.dataloader_prefetch_factor = prefetch_factor
        self.dataloader_multiprocessing_context = multiprocessing_context
        self.dataloader_in_order = in_order
        self.auto_find_batch_size = auto_find_batch_size
        self.ignore_data_skip = ignore_data_skip
        self.data_seed = sampler_seed
        return self._checked()
