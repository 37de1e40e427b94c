"""Validating constructor and training arguments; all problems are reported in one error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hf_compat.engine.precision import precision_problems
from hf_compat.errors import ArgumentsError, DataError, TrainerSetupError
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
    """
    setup, empty = _setup_problems(trainer), _empty_data(trainer)
    problems = [*_data_problems(trainer), *_optimization_problems(trainer)]
    if setup:
        raise TrainerSetupError("\n  ".join([*setup, *problems, *empty]))
    if problems:
        raise ArgumentsError([*problems, *empty])
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
    if args.auto_find_batch_size and (args.world_size > 1 or placement.start is not None):
        problems += batch_size_problems(
            placement, trainer.model, syncs_norms=bool(runtime.keywords.get("sync_batchnorm"))
        )
    is_single_process = args.world_size == 1 and placement.start is None
    if is_single_process and args.device.type == "cuda" and torch.cuda.device_count() > 1:
        problems.append(
            f"{torch.cuda.device_count()} GPUs are visible to one process, for which transformers uses `DataParallel`. "
            "That is not supported: start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
        )
    if trainer.model is None and trainer.model_init is None:
        problems.append("`model=None`: pass a `model`, or a `model_init` that returns one.")
    return problems + _given_optimizer_problems(trainer)


def _has_optimizers(trainer: Trainer) -> bool:
    return trainer.optimizer is not None or trainer.lr_scheduler is not None


def _empty_data(trainer: Trainer) -> list[str]:
    dataset = trainer.train_dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not has_length(dataset) or len(dataset):
        return []
    return ["`train_dataset` is empty. Pass at least one sample."]


def _data_problems(trainer: Trainer) -> list[str]:
    args, problems = trainer.args, []
    if args.eval_strategy != "no" and trainer.eval_dataset is None:
        problems.append(
            f"`eval_strategy={plain_name(args.eval_strategy)!r}`: there is no `eval_dataset`. Pass one to the Trainer, "
            "or set `eval_strategy='no'`."
        )
    wants_best = args.save_strategy == "best" or args.load_best_model_at_end
    if wants_best and args.metric_for_best_model is None:
        problems.append("`metric_for_best_model=None`: `save_strategy='best'` needs a metric. Set it.")
    unsized = trainer.train_dataset is not None and not has_length(trainer.train_dataset)
    if unsized and args.max_steps <= 0:
        problems.append(
            f"`max_steps={args.max_steps}`: `train_dataset` has no length, so the number of update steps is unknown. "
            "Set `max_steps`."
        )
    if is_metric(trainer.compute_metrics):
        if args.include_for_metrics:
            problems.append(
                f"`include_for_metrics={args.include_for_metrics!r}`: `compute_metrics` is a torchmetrics metric, "
                "which takes only predictions and labels. Do not set it, or pass a function."
            )
    elif args.batch_eval_metrics and trainer.compute_metrics is not None and not _takes_result(trainer.compute_metrics):
        problems.append(
            "`batch_eval_metrics=True`: `compute_metrics` has no parameter `compute_result`. Add it; it is True for "
            "the last batch."
        )
    config, size = args.accelerator_config, trainer.accelerator.data_parallel_size
    for name in ("dispatch_batches", "split_batches"):
        if args.train_sampling_strategy == "batch_rebalance" and size > 1 and getattr(config, name):
            problems.append(
                f"`accelerator_config={{{name!r}: True}}` cannot be combined with "
                "`train_sampling_strategy='batch_rebalance'`, which gives each rank batches of its own. Remove it."
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
            "`optimizers` is not supported with `model_init`: each `train` creates a new model, whose parameters are "
            "not in the optimizer. Override `create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    if trainer.optimizer is not None and trainer.optimizer_cls_and_kwargs is not None:
        problems.append("`optimizers` and `optimizer_cls_and_kwargs` were both passed: choose one.")
    return problems
