"""The arguments that keys of a DeepSpeed config correspond to: the values of ``"auto"``, and what must agree.

References:
    As ``HfTrainerDeepSpeedConfig`` in transformers ``integrations/deepspeed.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.releases.semantics import Semantics

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["ARGUMENT_RULES", "HIDDEN_SIZE_RULES", "RUN_RULES", "AutoRule", "RunRule", "SizeRule"]


@dataclass(frozen=True, slots=True)
class AutoRule:
    """One key that corresponds to an argument."""

    key: str
    """The key with its sections: ``"optimizer.params.lr"``."""
    argument: str | None
    """The argument's name in errors; None if the value is never compared."""
    value: Callable[[TrainingArguments], Any]
    """From the arguments to the value."""
    follows_batch_size: bool = False
    """Whether it is not compared during the search for a batch size."""
    applies: Callable[[Semantics], bool] = lambda semantics: True
    """Whether the release uses the key."""


@dataclass(frozen=True, slots=True)
class RunRule:
    """One key whose value depends on the length of the run."""

    key: str
    argument: str
    filled: Callable[[TrainingArguments, int], Any]
    """The value of ``"auto"``, from the arguments and the update steps of the run."""
    compared: Callable[[TrainingArguments, int, Semantics], Any]
    """The value that any other one must equal."""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """One key whose ``"auto"`` depends on the model's hidden size."""

    key: str
    value: Callable[[int], int]
    """From the hidden size to the value."""
    stage_3_only: bool = True


def _samples_per_update_step(args: TrainingArguments) -> int:
    return int(args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps)


def _computes_in(args: TrainingArguments, precision: str) -> bool:
    requested = getattr(args, precision) or getattr(args, f"{precision}_full_eval")
    return bool(requested or getattr(args, "mixed_precision", "no") == precision)  # also set by the launcher


def _had_apex(semantics: Semantics) -> bool:
    return not semantics.deepspeed_without_apex


def _warmup(args: TrainingArguments, steps: int) -> int:
    # DeepSpeed from 0.19.6 on rejects 0; earlier releases treat values below 2 as 2, so 1 is the same there.
    return max(1, int(args.get_warmup_steps(steps)))


def _warmup_compared(args: TrainingArguments, steps: int, semantics: Semantics) -> int:
    return _warmup(args, steps) if semantics.deepspeed_warms_up else int(args.get_warmup_steps(steps))


ARGUMENT_RULES: tuple[AutoRule, ...] = (
    AutoRule(
        "train_micro_batch_size_per_gpu",
        "per_device_train_batch_size",
        lambda args: args.per_device_train_batch_size,
        follows_batch_size=True,
    ),
    AutoRule(
        "gradient_accumulation_steps", "gradient_accumulation_steps", lambda args: args.gradient_accumulation_steps
    ),
    AutoRule(
        "train_batch_size",
        "world_size * per_device_train_batch_size * gradient_accumulation_steps",
        _samples_per_update_step,
        follows_batch_size=True,
    ),
    AutoRule("gradient_clipping", "max_grad_norm", lambda args: args.max_grad_norm),
    AutoRule("optimizer.params.lr", "learning_rate", lambda args: args.learning_rate),
    AutoRule("optimizer.params.betas", "[adam_beta1, adam_beta2]", lambda args: [args.adam_beta1, args.adam_beta2]),
    AutoRule("optimizer.params.eps", "adam_epsilon", lambda args: args.adam_epsilon),
    AutoRule("optimizer.params.weight_decay", "weight_decay", lambda args: args.weight_decay),
    AutoRule("scheduler.params.warmup_min_lr", None, lambda args: 0),
    AutoRule("scheduler.params.warmup_max_lr", "learning_rate", lambda args: args.learning_rate),
    AutoRule("fp16.enabled", "fp16 or fp16_full_eval", lambda args: _computes_in(args, "fp16")),
    AutoRule("amp.enabled", "half_precision_backend == 'apex'", lambda args: False, applies=_had_apex),
    AutoRule("amp.opt_level", "fp16_opt_level", lambda args: args.fp16_opt_level, applies=_had_apex),
    AutoRule("bf16.enabled", "bf16 or bf16_full_eval", lambda args: _computes_in(args, "bf16")),
)
"""Keys that depend on the arguments only."""

RUN_RULES: tuple[RunRule, ...] = (
    RunRule(
        "scheduler.params.total_num_steps",
        "max_steps, or the update steps of num_train_epochs",
        lambda args, steps: steps,
        lambda args, steps, semantics: steps,
    ),
    RunRule("scheduler.params.warmup_num_steps", "warmup_steps", _warmup, _warmup_compared),
)
"""Keys that depend on the length of the run, in update steps."""

HIDDEN_SIZE_RULES: tuple[SizeRule, ...] = (
    SizeRule("zero_optimization.reduce_bucket_size", lambda hidden: hidden * hidden, stage_3_only=False),
    SizeRule("zero_optimization.stage3_prefetch_bucket_size", lambda hidden: int(0.9 * hidden * hidden)),
    SizeRule("zero_optimization.stage3_param_persistence_threshold", lambda hidden: 10 * hidden),
)
"""Keys that depend on the model; they are never compared."""
