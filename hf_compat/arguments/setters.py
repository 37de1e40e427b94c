"""The methods ``set_training``, ``set_evaluate``, … of ``TrainingArguments``, each with the fields that it sets."""

# ruff: noqa: D417  (`self` needs no description)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hf_compat.arguments.checks import VALUE_CHECKS, find_problems, tracker_names
from hf_compat.arguments.derived import evaluates_in_training
from hf_compat.arguments.enums import HubStrategy, IntervalStrategy, OptimizerNames, SchedulerType
from hf_compat.arguments.fields import apply_checkpointing_alias, apply_warmup_ratio, declared, fields_of_the_script
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
)
SCHEDULE = Topic({"name": "lr_scheduler_type", "num_epochs": "num_train_epochs"}, finish=apply_warmup_ratio)
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


def _set_fields(args: Arguments, topic: Topic, parameters: Mapping[str, object]) -> Arguments:
    """Set the fields of ``topic`` and return ``args``.

    Args:
        args: The arguments.
        topic: What the calling method sets.
        parameters: Its parameters with their values, ``self`` among them.

    Raises:
        ArgumentsError: For invalid values, and for ``steps=0`` with ``strategy="steps"``.
        UnsupportedArgumentsError: For values that are not supported.
        ValueError: For an unknown name.
    """
    ours = declared(type(args))
    fields = {name: ours[topic.fields.get(name, name)] for name in parameters if name != "self"}
    values = {
        name: parameters[name] if item.enum is None else item.enum(parameters[name]) for name, item in fields.items()
    }
    if values.get("strategy") == "steps" and values.get("steps") == 0:
        text = "`strategy='steps'` requires a positive value for `steps`, a number of update steps."
        raise_all([Problem("steps", values["steps"], text)])
    semantics = resolve_semantics(args.semantics)
    with script_values_aside(args, fields_of_the_script(type(args), semantics.release)):
        for name, value in values.items():
            setattr(args, fields[name].name, value)
        if topic.switch is not None:
            setattr(args, topic.switch, True)
        topic.finish(args, semantics)
        names = {item.name for item in fields.values()}
        found = find_problems(args, semantics, VALUE_CHECKS)
        raise_all(problem for problem in found if problem.unsupported or problem.field in names)
    return args


# The methods, which `TrainingArguments` has by these names. All raise ArgumentsError for invalid values and for
# `steps=0` with `strategy="steps"`, ValueError for an unknown name, and UnsupportedArgumentsError for values that are
# not supported. Their defaults are upstream's, which are not always those of the fields.


def set_training(
    self: Arguments,
    learning_rate: float = 5e-5,
    batch_size: int = 8,
    weight_decay: float = 0,
    num_epochs: float = 3,
    max_steps: int = -1,
    gradient_accumulation_steps: int = 1,
    seed: int = 42,
    activation_checkpointing: bool = False,
    gradient_checkpointing: bool | None = None,
) -> Arguments:
    """Set ``do_train`` and the training fields.

    Args:
        learning_rate: Rate after the warm-up.
        batch_size: Samples of a batch, on each device.
        weight_decay: Of the optimizer.
        num_epochs: Passes over the data, if ``max_steps`` does not decide.
        max_steps: Update steps; -1 for ``num_epochs``.
        gradient_accumulation_steps: Batches of an update step, on each device.
        seed: Of the run.
        activation_checkpointing: Whether activations are computed again in the backward pass.
        gradient_checkpointing: The old name of its neighbour.

    Returns:
        These arguments.
    """
    return _set_fields(self, TRAINING, locals())


def set_evaluate(
    self: Arguments,
    strategy: str | IntervalStrategy = "no",
    steps: int = 500,
    batch_size: int = 8,
    accumulation_steps: int | None = None,
    delay: float | None = None,
    loss_only: bool = False,
    jit_mode: bool = False,
) -> Arguments:
    """Set the fields of evaluation; ``do_eval`` follows from ``strategy``.

    Args:
        strategy: When: ``"no"``, ``"steps"`` or ``"epoch"``.
        steps: Update steps between evaluations.
        batch_size: Samples of a batch, on each device.
        accumulation_steps: Batches after which predictions move to the CPU; None for the end.
        delay: Epochs or update steps before the first evaluation.
        loss_only: Whether only the loss is returned.
        jit_mode: Whether ``torch.jit`` is used.

    Returns:
        These arguments.
    """
    return _set_fields(self, EVALUATION, locals())


def set_testing(self: Arguments, batch_size: int = 8, loss_only: bool = False, jit_mode: bool = False) -> Arguments:
    """Set ``do_predict`` and the fields of prediction.

    Args:
        batch_size: Samples of a batch, on each device.
        loss_only: Whether only the loss is returned.
        jit_mode: Whether ``torch.jit`` is used.

    Returns:
        These arguments.
    """
    return _set_fields(self, TESTING, locals())


def set_save(
    self: Arguments,
    strategy: str | IntervalStrategy = "steps",
    steps: int = 500,
    total_limit: int | None = None,
    on_each_node: bool = False,
) -> Arguments:
    """Set the fields of saving.

    Args:
        strategy: When: ``"no"``, ``"steps"``, ``"epoch"`` or ``"best"``.
        steps: Update steps between saves.
        total_limit: Checkpoints that are kept; None for all.
        on_each_node: Whether each node writes, for folders that nodes do not share.

    Returns:
        These arguments.
    """
    return _set_fields(self, SAVING, locals())


def set_logging(
    self: Arguments,
    strategy: str | IntervalStrategy = "steps",
    steps: int = 500,
    report_to: str | list[str] = "none",
    level: str = "passive",
    first_step: bool = False,
    nan_inf_filter: bool = False,
    on_each_node: bool = False,
    replica_level: str = "passive",
) -> Arguments:
    """Set the fields of logging.

    Args:
        strategy: When: ``"no"``, ``"steps"`` or ``"epoch"``.
        steps: Update steps between logs.
        report_to: Trackers, by name.
        level: Level of the loggers on rank 0.
        first_step: Whether the first update step is logged.
        nan_inf_filter: Whether losses that are not finite are left out of the mean.
        on_each_node: Whether a process of each node uses ``level``.
        replica_level: Level of the loggers on other ranks.

    Returns:
        These arguments.
    """
    return _set_fields(self, LOGGING, locals())


def set_push_to_hub(
    self: Arguments,
    model_id: str,
    strategy: str | HubStrategy = "every_save",
    token: str | None = None,
    private_repo: bool | None = None,
    always_push: bool = False,
    revision: str | None = None,
) -> Arguments:
    """Set ``push_to_hub`` and the fields of the Hub.

    Args:
        model_id: Repository.
        strategy: What is pushed, and when: ``"end"``, ``"every_save"``, ``"checkpoint"``, ``"all_checkpoints"``.
        token: Of the Hub; by default the one of the machine.
        private_repo: Whether a new repository is private.
        always_push: Whether a push begins while another one is not done.
        revision: Branch.

    Returns:
        These arguments.
    """
    return _set_fields(self, HUB, locals())


def set_optimizer(
    self: Arguments,
    name: str | OptimizerNames = "adamw_torch",
    learning_rate: float = 5e-5,
    weight_decay: float = 0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    args: str | None = None,
) -> Arguments:
    """Set the fields of the optimizer.

    Args:
        name: As ``optim``.
        learning_rate: Rate after the warm-up.
        weight_decay: Of all parameters but biases and those of normalisation layers.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of their squares.
        epsilon: Added to the denominator.
        args: As ``optim_args``.

    Returns:
        These arguments.
    """
    return _set_fields(self, OPTIMIZER, locals())


def set_lr_scheduler(
    self: Arguments,
    name: str | SchedulerType = "linear",
    num_epochs: float = 3.0,
    max_steps: int = -1,
    warmup_steps: float = 0,
    warmup_ratio: float | None = None,
) -> Arguments:
    """Set the fields of the learning-rate schedule and the length of the run.

    Args:
        name: As ``lr_scheduler_type``.
        num_epochs: Passes over the data, if ``max_steps`` does not decide.
        max_steps: Update steps; -1 for ``num_epochs``.
        warmup_steps: Update steps of the warm-up, or their share of the run if below 1.
        warmup_ratio: The share of the run, by its older name.

    Returns:
        These arguments.
    """
    return _set_fields(self, SCHEDULE, locals())


def set_dataloader(
    self: Arguments,
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
) -> Arguments:
    """Set the fields of the data loaders and ``data_seed``.

    Args:
        train_batch_size: Samples of a training batch, on each device.
        eval_batch_size: Samples of an evaluation batch, on each device.
        drop_last: Whether a last batch that is not full is left out.
        num_workers: Processes that load; 0 for the process itself.
        pin_memory: Whether batches are copied into pinned memory.
        persistent_workers: Whether workers live on between epochs.
        prefetch_factor: Batches that each worker loads ahead.
        multiprocessing_context: How workers are started, such as ``"fork"``.
        in_order: Whether batches come in the order of the sampler.
        auto_find_batch_size: Whether a run starts again with smaller batches when memory runs out.
        ignore_data_skip: Whether a resumed run begins its epoch anew.
        sampler_seed: Of the order of samples, as ``data_seed``.

    Returns:
        These arguments.
    """
    return _set_fields(self, LOADERS, locals())
