"""Validating constructor and training arguments; all problems are reported in one error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.engine.lightning_callbacks import callback_problems
from hf_compat.engine.precision import precision_problems
from hf_compat.errors import ArgumentsError, DataCollatorError, DataError, TrainerSetupError
from hf_compat.evaluation.stream import is_metric
from hf_compat.metrics import has_length
from hf_compat.optim.optim_args import parse_optim_args
from hf_compat.optim.schedulers import unknown_scheduler_kwargs
from hf_compat.optim.settings import plain_name
from hf_compat.overriding import is_ours
from hf_compat.run.batch_size import batch_size_problems

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["validate"]


def validate(trainer: Trainer) -> None:
    """Check that constructor and training arguments are supported together.

    Raises:
        TrainerSetupError: If constructor arguments are not; it lists all other problems too.
        ArgumentsError: If training arguments are not.
        DataError: If the training dataset is empty.
        DataCollatorError: If the collator cannot be called.
    """
    setup, empty, collator = _setup_problems(trainer), _empty_data(trainer), _collator_problems(trainer)
    problems = [*_data_problems(trainer), *_accelerator_config_problems(trainer), *_optimization_problems(trainer)]
    if setup:
        raise TrainerSetupError("\n  ".join([*setup, *problems, *collator, *empty]))
    if problems:
        raise ArgumentsError([*problems, *collator, *empty])
    if collator:
        raise DataCollatorError("\n  ".join([*collator, *empty]))
    if empty:
        raise DataError(*empty)


def _setup_problems(trainer: Trainer) -> list[str]:
    args, runtime = trainer.args, trainer._lightning_runtime
    placement, facts = runtime.placement, runtime.facts
    problems = [*runtime.problems]
    problems += facts.limits(
        args,
        model=trainer.model,
        has_optimizers=_has_optimizers(trainer),
        precision=runtime.precision,
        settings=placement.fsdp,
    )
    problems += precision_problems(args.mixed_precision, runtime.plugins)
    problems += callback_problems(
        runtime.callbacks, for_run(args), shards_model=facts.shards_model, keywords=runtime.keywords
    )
    if args.auto_find_batch_size and (args.world_size > 1 or placement.start is not None):
        problems += batch_size_problems(
            placement, trainer.model, syncs_norms=bool(runtime.keywords.get("sync_batchnorm"))
        )
    for name in ("dispatch_batches", "split_batches"):
        if not runtime.loop.shards_batches and getattr(args.accelerator_config, name):
            problems.append(
                f"`lightning={{'use_distributed_sampler': False}}` contradicts `accelerator_config={{{name!r}: True}}` "
                "of the training arguments. Set one of them only."
            )
    if trainer.model is None and trainer.model_init is None:
        problems.append("`model=None`: `Trainer` requires either a `model` or `model_init` argument. Pass one of them.")
    return problems + _given_optimizer_problems(trainer)


def _has_optimizers(trainer: Trainer) -> bool:
    return trainer.optimizer is not None or trainer.lr_scheduler is not None


def _empty_data(trainer: Trainer) -> list[str]:
    dataset = trainer.train_dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not has_length(dataset) or len(dataset):
        return []
    return ["`train_dataset` is empty. Pass at least one sample."]


def _collator_problems(trainer: Trainer) -> list[str]:
    collator = trainer.data_collator
    if callable(collator):
        return []
    has_old_name = callable(getattr(collator, "collate_batch", None))
    remedy = "Rename its `collate_batch` to `__call__`." if has_old_name else "Pass a function of a list of samples."
    return [
        f"`data_collator`: {type(collator).__name__} cannot be called, but it should be a simple callable. {remedy}"
    ]


def _data_problems(trainer: Trainer) -> list[str]:
    args, problems = for_run(trainer.args), []
    if args.eval_strategy != "no" and trainer.eval_dataset is None:
        problems.append(
            f"`eval_strategy={plain_name(args.eval_strategy)!r}`: an evaluation is set, but you didn't pass an "
            "`eval_dataset` to `Trainer`. Pass one, or set `eval_strategy='no'`."
        )
    wants_best = args.save_strategy == "best" or args.load_best_model_at_end
    if wants_best and args.metric_for_best_model is None:
        phrase = "`args.metric_for_best_model` must be provided when using 'best' save_strategy"
        problems.append(f"`metric_for_best_model=None`: {phrase}. Set it, for instance to 'loss'.")
    unsized = trainer.train_dataset is not None and not has_length(trainer.train_dataset)
    if unsized and args.max_steps <= 0:
        problems.append(
            f"`max_steps={args.max_steps}`: max_steps has to be specified, as `train_dataset` has no length. Set it to "
            "the number of update steps."
        )
    is_stream = isinstance(trainer.train_dataset, torch.utils.data.IterableDataset)
    groups = args.train_sampling_strategy == "group_by_length"
    if groups and is_stream and trainer.semantics.release < SINCE["renames_group_by_length"]:
        problems.append(
            "`group_by_length=True`: the `--group_by_length` option is only available for `Dataset`, not for an "
            "`IterableDataset`. Remove it, or pass a dataset with a length."
        )
    if is_metric(trainer.compute_metrics):
        if args.include_for_metrics:
            problems.append(
                f"`include_for_metrics={args.include_for_metrics!r}`: `compute_metrics` is a torchmetrics metric, "
                "which takes only predictions and labels. Do not set it, or pass a function."
            )
    elif args.batch_eval_metrics and trainer.compute_metrics is not None and not _takes_result(trainer.compute_metrics):
        problems.append(
            "`batch_eval_metrics=True`: your `compute_metrics` function must take a `compute_result` boolean argument. "
            "Add it; it is True for the last batch."
        )
    return problems


def _accelerator_config_problems(trainer: Trainer) -> list[str]:
    args, problems = for_run(trainer.args), []
    config, size = args.accelerator_config, trainer.accelerator.data_parallel_size
    num_steps = (config.gradient_accumulation_kwargs or {}).get("num_steps", args.gradient_accumulation_steps)
    if num_steps != args.gradient_accumulation_steps:
        phrase = "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1"
        problems.append(
            f"`gradient_accumulation_steps={args.gradient_accumulation_steps}`: {phrase}: num_steps={num_steps}. Set "
            "one of them only."
        )
    for name in ("dispatch_batches", "split_batches"):
        if args.train_sampling_strategy == "batch_rebalance" and size > 1 and getattr(config, name):
            problems.append(
                f"`accelerator_config={{{name!r}: True}}` cannot be combined with "
                "`train_sampling_strategy='batch_rebalance'`, which builds the batches of each rank itself. Remove it."
            )
    return problems


def _takes_result(compute_metrics: Callable[..., object]) -> bool:
    return "compute_result" in inspect.signature(compute_metrics).parameters


def _optimization_problems(trainer: Trainer) -> list[str]:
    """Return the problems of ``optim_args`` and ``lr_scheduler_kwargs``, unless overridden methods read them."""
    args = trainer.args
    problems: list[str] = []
    named = trainer.optimizer is None and trainer.optimizer_cls_and_kwargs is None
    own_both = is_ours(trainer.create_optimizer_and_scheduler)
    if named and own_both and is_ours(trainer.create_optimizer) and is_ours(trainer.get_optimizer_cls_and_kwargs):
        try:
            parse_optim_args(args.optim_args)
        except ArgumentsError as error:
            problems.extend(error.problems)
    if trainer.lr_scheduler is None and own_both and is_ours(trainer.create_scheduler):
        problems.extend(unknown_scheduler_kwargs(args.lr_scheduler_type, args.lr_scheduler_kwargs, trainer.semantics))
    return problems


def _given_optimizer_problems(trainer: Trainer) -> list[str]:
    """Return why an optimizer or a schedule that was passed to the Trainer cannot be used."""
    problems: list[str] = []
    if trainer.model_init is not None and _has_optimizers(trainer):
        problems.append(
            "Passing a `model_init` is incompatible with providing the `optimizers` argument: each `train` "
            "creates a new model, whose parameters are not in the optimizer. Override `create_optimizer`, or pass "
            "`optimizer_cls_and_kwargs`."
        )
    if trainer.optimizer is not None and trainer.optimizer_cls_and_kwargs is not None:
        problems.append(
            "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible: choose one."
        )
    return problems
