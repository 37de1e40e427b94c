"""The hyperparameters of a run, as model cards list them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.semantics import Semantics

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["hyperparameters"]


def hyperparameters(args: TrainingArguments, semantics: Semantics, data_parallel_size: int) -> dict[str, Any]:
    """Return the hyperparameters of the run, by their names in model cards, without those that are off.

    Args:
        args: The training arguments.
        semantics: The transformers release to follow.
        data_parallel_size: Data-parallel world size.
    """
    args = for_run(args)
    devices, accumulated = args.world_size, args.gradient_accumulation_steps
    train, evaluated = args.train_batch_size, args.eval_batch_size
    total = train * data_parallel_size * accumulated
    ratio = 0.0 if semantics.warmup_ratio_replaces_steps else args.warmup_ratio
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("learning_rate", args.learning_rate, True),
        ("train_batch_size", train, True),
        ("eval_batch_size", evaluated, True),
        ("seed", args.seed, True),
        ("distributed_type", "multi-GPU", devices > 1),
        ("num_devices", devices, devices > 1),
        ("gradient_accumulation_steps", accumulated, accumulated > 1),
        ("total_train_batch_size", total, total != train),
        ("total_eval_batch_size", evaluated * data_parallel_size, devices > 1),
        ("optimizer", _optimizer(args), bool(args.optim)),
        ("lr_scheduler_type", getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type), True),
        ("lr_scheduler_warmup_ratio", ratio, bool(ratio)),
        ("lr_scheduler_warmup_steps", args.warmup_steps, bool(args.warmup_steps)),
        ("training_steps", args.max_steps, args.max_steps != -1),
        ("num_epochs", args.num_train_epochs, args.max_steps == -1),
        ("mixed_precision_training", "Native AMP", bool(args.fp16)),
        ("label_smoothing_factor", args.label_smoothing_factor, args.label_smoothing_factor != 0),
    )
    return {name: value for name, value, is_shown in rows if is_shown}


def _optimizer(args: TrainingArguments) -> str:
    name = getattr(args.optim, "value", args.optim)
    extra = args.optim_args or "No additional optimizer arguments"
    if "adam" not in name.lower():
        return f"Use {name} and the args are:\n{extra}"
    betas = f"betas=({args.adam_beta1},{args.adam_beta2})"
    return f"Use {name} with {betas} and epsilon={args.adam_epsilon} and optimizer_args={extra}"
