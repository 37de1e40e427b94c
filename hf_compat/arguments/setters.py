"""The fields that the methods ``set_training``, ``set_evaluate``, … of ``TrainingArguments`` set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hf_compat.arguments.checks import VALUE_CHECKS, find_problems, tracker_names
from hf_compat.arguments.derived import evaluates_in_training
from hf_compat.arguments.enums import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from hf_compat.arguments.fields import apply_checkpointing_alias, apply_warmup_ratio
from hf_compat.arguments.problems import Problem, raise_all
from hf_compat.arguments.releases import Semantics, resolve_semantics, script_values_aside

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments


Arguments = TypeVar("Arguments", bound="TrainingArguments")


def _nothing(args: TrainingArguments, semantics: Semantics) -> None:
    """Leave the fields as they were set."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The fields that a method sets."""

    fields: Mapping[str, str]
    """Parameter to field, where the names differ."""
    kinds: Mapping[str, Callable[[object], object]] = field(default_factory=dict)
    """Parameter to the enum of its values."""
    switch: str | None = None
    """A field that is turned on."""
    finish: Callable[[TrainingArguments, Semantics], None] = _nothing
    """Sets the fields that follow from the others."""


def _checkpointing(args: TrainingArguments, semantics: Semantics) -> None:
    """Give both names of activation checkpointing the same value; the old one, if given, wins."""
    if args.gradient_checkpointing is None:
        args.gradient_checkpointing = args.activation_checkpointing
        return
    args.activation_checkpointing = None
    apply_checkpointing_alias(args, semantics)


def _evaluation(args: TrainingArguments, semantics: Semantics) -> None:
    args.do_eval = evaluates_in_training(args)
    if args.eval_delay is None:  # upstream leaves it, and then cannot compare it with update steps
        args.eval_delay = 0


def _trackers(args: TrainingArguments, semantics: Semantics) -> None:
    args.report_to, problems = tracker_names(args.report_to, semantics)
    raise_all(problems)


TRAINING = Topic(
    {"batch_size": "per_device_train_batch_size", "num_epochs": "num_train_epochs"},
    switch="do_train",
    finish=_checkpointing,
)
EVALUATION = Topic(
    {
        "strategy": "eval_strategy",
        "steps": "eval_steps",
        "batch_size": "per_device_eval_batch_size",
        "accumulation_steps": "eval_accumulation_steps",
        "delay": "eval_delay",
        "loss_only": "prediction_loss_only",
        "jit_mode": "jit_mode_eval",
    },
    {"strategy": IntervalStrategy},
    finish=_evaluation,
)
TESTING = Topic(
    {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only", "jit_mode": "jit_mode_eval"},
    switch="do_predict",
)
SAVING = Topic(
    {
        "strategy": "save_strategy",
        "steps": "save_steps",
        "total_limit": "save_total_limit",
        "on_each_node": "save_on_each_node",
    },
    {"strategy": SaveStrategy},
)
LOGGING = Topic(
    {
        "strategy": "logging_strategy",
        "steps": "logging_steps",
        "level": "log_level",
        "first_step": "logging_first_step",
        "nan_inf_filter": "logging_nan_inf_filter",
        "on_each_node": "log_on_each_node",
        "replica_level": "log_level_replica",
    },
    {"strategy": IntervalStrategy},
    finish=_trackers,
)
HUB = Topic(
    {
        "model_id": "hub_model_id",
        "strategy": "hub_strategy",
        "token": "hub_token",
        "private_repo": "hub_private_repo",
        "always_push": "hub_always_push",
        "revision": "hub_revision",
    },
    {"strategy": HubStrategy},
    switch="push_to_hub",
)
OPTIMIZER = Topic(
    {
        "name": "optim",
        "beta1": "adam_beta1",
        "beta2": "adam_beta2",
        "epsilon": "adam_epsilon",
        "args": "optim_args",
    },
    {"name": OptimizerNames},
)
SCHEDULE = Topic(
    {"name": "lr_scheduler_type", "num_epochs": "num_train_epochs"}, {"name": SchedulerType}, finish=apply_warmup_ratio
)
LOADERS = Topic(
    {
        "train_batch_size": "per_device_train_batch_size",
        "eval_batch_size": "per_device_eval_batch_size",
        "drop_last": "dataloader_drop_last",
        "num_workers": "dataloader_num_workers",
        "pin_memory": "dataloader_pin_memory",
        "persistent_workers": "dataloader_persistent_workers",
        "prefetch_factor": "dataloader_prefetch_factor",
        "multiprocessing_context": "dataloader_multiprocessing_context",
        "in_order": "dataloader_in_order",
        "sampler_seed": "data_seed",
    }
)


def set_fields(args: Arguments, topic: Topic, given: Mapping[str, object]) -> Arguments:
    """Set the fields of ``topic`` and return ``args``.

    Args:
        args: The arguments.
        topic: What the calling method sets.
        given: Its parameters with their values, ``self`` among them.

    Raises:
        ArgumentsError: For invalid values, and for ``steps=0`` with ``strategy="steps"``.
        UnsupportedArgumentsError: For values that are not supported.
        ValueError: For an unknown name.
    """
    values = {name: topic.kinds.get(name, _as_given)(value) for name, value in given.items() if name != "self"}
    if values.get("strategy") == "steps" and values.get("steps") == 0:
        text = "`strategy='steps'` requires a positive value for `steps`, a number of update steps."
        raise_all([Problem("steps", values["steps"], text)])
    semantics = resolve_semantics(args.semantics)
    with script_values_aside(args, semantics.release):
        for name, value in values.items():
            setattr(args, topic.fields.get(name, name), value)
        if topic.switch is not None:
            setattr(args, topic.switch, True)
        topic.finish(args, semantics)
        names = {topic.fields.get(name, name) for name in values}
        found = find_problems(args, semantics, VALUE_CHECKS)
        raise_all(problem for problem in found if problem.unsupported or problem.field in names)
    return args


def _as_given(value: object) -> object:
    return value
