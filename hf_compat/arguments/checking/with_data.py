"""Contradictions between training arguments and the data and metrics that a Trainer is given, and notes about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.arguments.run_precision import amp_backend

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["accelerator_config_problems", "data_problems", "setup_notes", "setup_warnings"]


def data_problems(
    args: TrainingArguments,
    semantics: Semantics,
    *,
    has_eval_data: bool,
    lacks_length: bool,
    is_stream: bool,
    has_metric: bool,
    takes_result: bool,
) -> list[str]:
    """Return the problems of ``args`` with data sets and metrics.

    Args:
        args: The training arguments.
        semantics: The transformers release to follow.
        has_eval_data: Whether there is an evaluation dataset.
        lacks_length: Whether there is a training dataset, without length.
        is_stream: Whether the training dataset is an ``IterableDataset``.
        has_metric: Whether ``compute_metrics`` is a torchmetrics metric.
        takes_result: Whether ``compute_metrics`` is one, takes ``compute_result``, or is None.
    """
    args, problems = for_run(args), []
    if args.eval_strategy != "no" and not has_eval_data:
        strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
        problems.append(
            f"`eval_strategy={strategy!r}`: an evaluation is set, but you didn't pass an `eval_dataset` to `Trainer`. "
            "Pass one, or set `eval_strategy='no'`."
        )
    wants_best = args.save_strategy == "best" or args.load_best_model_at_end
    if wants_best and args.metric_for_best_model is None:
        phrase = "`args.metric_for_best_model` must be provided when using 'best' save_strategy"
        problems.append(f"`metric_for_best_model=None`: {phrase}. Set it, for instance to 'loss'.")
    if lacks_length and args.max_steps <= 0:
        problems.append(
            f"`max_steps={args.max_steps}`: max_steps has to be specified, as `train_dataset` has no length. Set it to "
            "the number of update steps."
        )
    groups = args.train_sampling_strategy == "group_by_length"
    if groups and is_stream and semantics.release < SINCE["renames_group_by_length"]:
        problems.append(
            "`group_by_length=True`: the `--group_by_length` option is only available for `Dataset`, not for an "
            "`IterableDataset`. Remove it, or pass a dataset with a length."
        )
    if has_metric and args.include_for_metrics:
        problems.append(
            f"`include_for_metrics={args.include_for_metrics!r}`: `compute_metrics` is a torchmetrics metric, "
            "which takes only predictions and labels. Do not set it, or pass a function."
        )
    if args.batch_eval_metrics and not takes_result:
        problems.append(
            "`batch_eval_metrics=True`: your `compute_metrics` function must take a `compute_result` boolean argument. "
            "Add it; it is True for the last batch."
        )
    return problems


def accelerator_config_problems(args: TrainingArguments, data_parallel_size: int) -> list[str]:
    """Return the contradictions between ``accelerator_config`` and other fields.

    Args:
        args: The training arguments.
        data_parallel_size: Data-parallel world size.
    """
    args, problems = for_run(args), []
    config, steps = args.accelerator_config, args.gradient_accumulation_steps
    num_steps = (config.gradient_accumulation_kwargs or {}).get("num_steps", steps)
    if num_steps != steps:
        phrase = "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1"
        problems.append(
            f"`gradient_accumulation_steps={steps}`: {phrase}: num_steps={num_steps}. Set one of them only."
        )
    rebalances = args.train_sampling_strategy == "batch_rebalance" and data_parallel_size > 1
    problems += [
        f"`accelerator_config={{{name!r}: True}}` cannot be combined with `train_sampling_strategy='batch_rebalance'`, "
        "which builds the batches of each rank itself. Remove it."
        for name in ("dispatch_batches", "split_batches")
        if rebalances and getattr(config, name)
    ]
    return problems


def setup_warnings(args: TrainingArguments) -> Iterator[str]:
    """Yield what a Trainer that is made warns of: fields that have no effect without another."""
    if getattr(args.accelerator_config, "non_blocking", False) and not args.dataloader_pin_memory:
        yield (
            "`non_blocking` is enabled but `dataloader_pin_memory` is not: batches are copied synchronously. Set both."
        )


def setup_notes(args: TrainingArguments, semantics: Semantics, *, is_stream: bool) -> Iterator[str]:
    """Yield what a Trainer that is made logs at level info: fields that have no effect, and what replaces them."""
    args, is_old = for_run(args), semantics.release.major < 5
    if args.max_steps > 0 and args.num_train_epochs > 0:
        yield (
            f"max_steps is given ({args.max_steps}), it will override any value given in num_train_epochs "
            f"({args.num_train_epochs})"
        )
    if is_old and (args.fp16 or args.bf16):
        yield f"Using {amp_backend(args)} half precision backend"
    if not is_old and is_stream:
        yield (
            f"`train_sampling_strategy={args.train_sampling_strategy!r}` is ignored when using an `IterableDataset`: "
            "it decides its order itself."
        )
