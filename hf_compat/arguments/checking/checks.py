"""Checks of ``TrainingArguments``: invalid values and fields that contradict each other; all of them are found."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.deepspeed.requested import deepspeed_problems
from hf_compat.arguments.fields.defaults import (
    HALF_PRECISION_BACKENDS,
    LOG_LEVELS,
    SAMPLING_STRATEGIES,
    START_METHODS,
    defaults,
)
from hf_compat.arguments.fields.rules import unsupported_problems
from hf_compat.arguments.fields.unknown import nearest_value
from hf_compat.arguments.fsdp.settings import fsdp_problems
from hf_compat.arguments.parallelism import parallelism_problems
from hf_compat.arguments.process_facts import uses_configured_state
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.arguments.run_precision import PRECISION_VARIABLE, mixed_precision
from hf_compat.distributed.accelerate_state import configured_precision, configured_state
from hf_compat.distributed.accelerators import accelerator_type, lacks_bf16, lacks_fp16, lacks_tf32, wants_cpu

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments


__all__ = ["VALUE_CHECKS", "find_problems"]

Problems = Iterator[Problem]

BOUNDS: dict[str, tuple[float, float]] = {
    "learning_rate": (0, float("inf")),
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "adam_epsilon": (0, float("inf")),
    "label_smoothing_factor": (float("-inf"), 1),
    "weight_decay": (float("-inf"), float("inf")),
    "warmup_steps": (0, float("inf")),
}
"""Field to its smallest and largest valid value."""

MINIMUMS: dict[str, float] = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "torch_empty_cache_steps": 1,
    "past_index": -math.inf,
    "data_seed": -math.inf,
    "fsdp_min_num_params": -math.inf,
    "max_steps": -math.inf,
    "save_total_limit": -math.inf,
    "seed": -math.inf,
}
"""Integer field to its smallest valid value; None is valid if it is the default."""

CHOICES: dict[str, tuple[str | None, ...]] = {
    "dataloader_multiprocessing_context": (None, *START_METHODS),
    "half_precision_backend": HALF_PRECISION_BACKENDS,
    "include_num_input_tokens_seen": ("no", "all", "non_padding"),
    "log_level": tuple(LOG_LEVELS),
    "log_level_replica": tuple(LOG_LEVELS),
    "on_save_error": ("raise", "warn"),
    "train_sampling_strategy": SAMPLING_STRATEGIES,
}
_BEFORE_BALANCING = {
    "train_sampling_strategy": tuple(each for each in SAMPLING_STRATEGIES if each != "batch_rebalance")
}

NUMBERS = (
    *BOUNDS,
    *MINIMUMS,
    "ddp_timeout",
    "eval_accumulation_steps",
    "eval_delay",
    "eval_steps",
    "logging_steps",
    "max_grad_norm",
    "neftune_noise_alpha",
    "num_train_epochs",
    "preemption_timeout",
    "save_steps",
    "warmup_ratio",
)
"""Fields that must be numbers for the checks to compare them."""

_MAY_BE_NONE = (
    *("data_seed", "eval_accumulation_steps", "eval_steps", "max_grad_norm", "neftune_noise_alpha"),
    *("preemption_timeout", "save_total_limit", "torch_empty_cache_steps", "warmup_ratio"),
)
NAMES: dict[str, tuple[type, ...]] = {"include_for_metrics": (Mapping, NoneType), "label_names": (Mapping, str)}
"""Field that must be a list of names → types of collections that are no such list."""

WORDS = {
    "ddp_backend": "the name of a backend",
    "optim_args": "'name=value,name=value'",
    "torch_compile_backend": "the name of a backend",
    "torch_compile_mode": "the name of a mode",
    "metric_for_best_model": "the name of a metric",
}
"""Field that must be a string → its meaning."""

_LONGEST = timedelta.max.total_seconds() // 1
_LARGEST_SEED = 2**32 - 1
_DIGITS = 6
_RATIO_DIGITS = 10**_DIGITS  # ratios are compared as upstream does, past the rounding of floats
_ACCUMULATION_KEYS = {"num_steps", "sync_each_batch", "sync_with_dataloader", "adjust_scheduler"}


def _numbers(args: TrainingArguments) -> Problems:
    for name in NUMBERS:
        value = getattr(args, name)
        if not isinstance(value, Real) and not (value is None and name in _MAY_BE_NONE):
            quoted = "; write it without quotes (in YAML, 1.0e-4 rather than 1e-4)" if isinstance(value, str) else ""
            yield Problem(name, value, f"must be a number{quoted}.", wrong_type=True)


def _types(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Check fields that are neither numbers nor switches."""
    for name, others in NAMES.items():
        value = getattr(args, name)
        if not isinstance(value, Collection | None) or isinstance(value, others):
            yield Problem(name, value, "must be a list of names.", wrong_type=True)
    options = args.lr_scheduler_kwargs
    is_bad_json = isinstance(options, str) and options.startswith("{")  # reported when it was read
    if not (isinstance(options, Mapping | None) or is_bad_json):
        yield Problem("lr_scheduler_kwargs", options, "must be a dict, or JSON of one.", wrong_type=True)
    may_be_empty = ("optim_args", "metric_for_best_model") if args.eval_strategy == "no" else ("optim_args",)
    for name, meaning in WORDS.items():
        value = getattr(args, name)
        if not isinstance(value, str | None):
            yield Problem(name, value, f"must be a string, {meaning}.", wrong_type=True)
        elif value == "" and name not in may_be_empty:
            yield Problem(name, value, f"must be {meaning}; set it, or None.")


def _bounds(args: TrainingArguments, semantics: Semantics) -> Problems:
    for name, (smallest, largest) in BOUNDS.items():
        value = getattr(args, name)
        if value is not None and not smallest <= value <= largest:
            yield Problem(name, value, f"must be {_within(smallest, largest)}.")


def _within(smallest: float, largest: float) -> str:
    if math.isfinite(smallest) and math.isfinite(largest):
        return f"between {smallest} and {largest}"
    return f"{smallest} or more" if math.isfinite(smallest) else f"a number, {largest} or less"


def _counts(args: TrainingArguments, semantics: Semantics) -> Problems:
    for name, least in MINIMUMS.items():
        value = getattr(args, name)
        if value is not None and (not isinstance(value, Integral) or value < least):
            bound = f", {least} or more" if math.isfinite(least) else ""
            text = f"`{name}` must be an integer{bound}."
            yield Problem(name, value, text, wrong_type=not isinstance(value, Integral), also=_of_number(value))
    steps = args.eval_accumulation_steps
    if steps is not None and (not isinstance(steps, Integral) or int(steps) == 0):  # of -2 every second batch, as of 2
        text = "must be an integer other than 0, or None."
        kind = not isinstance(steps, Integral)
        yield Problem("eval_accumulation_steps", steps, text, wrong_type=kind, also=_of_number(steps))


def _of_number(count: object) -> tuple[type[Exception], ...]:
    """Return what transformers raises where it divides by ``count``."""
    return (ZeroDivisionError,) if count == 0 else ()


def _choices(args: TrainingArguments, semantics: Semantics) -> Problems:
    older = {} if semantics.release >= SINCE["balances_batches"] else _BEFORE_BALANCING
    for name, allowed in (CHOICES | older).items():
        value = getattr(args, name)
        if value not in allowed:
            question = nearest_value(value, allowed)
            choose = "Choose" if question else "choose"
            also = (KeyError, TypeError) if name.startswith("log_level") else ()
            yield Problem(name, value, f"{question}{choose} one of {', '.join(map(repr, allowed))}.", also=also)
    if "tpu_metrics_debug" in args.debug:
        yield Problem("debug", "tpu_metrics_debug", "TPUs are not supported; remove it.", unsupported=True)


def _length(args: TrainingArguments, semantics: Semantics) -> Problems:
    if isinstance(args.seed, Integral) and not 0 <= args.seed <= _LARGEST_SEED:
        yield Problem("seed", args.seed, f"must be between 0 and {_LARGEST_SEED}.")
    if args.max_steps < 0 and not math.isfinite(args.num_train_epochs):
        text = "must be finite; to end a run by its update steps set `max_steps`."
        yield Problem("num_train_epochs", args.num_train_epochs, text)
    if args.preemption_timeout is not None and not args.preemption_timeout >= 0:
        yield Problem("preemption_timeout", args.preemption_timeout, "must be a number of seconds, or None to wait.")
    if not -_LONGEST <= args.ddp_timeout <= _LONGEST:
        yield Problem("ddp_timeout", args.ddp_timeout, "must be a number of seconds.")
    if args.warmup_steps == math.inf:
        yield Problem("warmup_steps", args.warmup_steps, "must be finite.", also=(OverflowError,))
    ratio = args.warmup_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        yield Problem("warmup_ratio", ratio, "warmup_ratio must lie in range [0,1], a fraction of all update steps.")
    steps = args.warmup_steps
    if isinstance(steps, float) and not steps.is_integer() and not semantics.warmup_below_one_is_ratio:
        yield Problem(
            "warmup_steps", steps, "must be an integer; for a fraction of all update steps set `warmup_ratio`."
        )


def _steps(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Check the intervals in update steps of every strategy that is ``"steps"``."""
    for event in ("logging", "eval", "save"):
        name = f"{event}_steps"
        value = getattr(args, name)
        if getattr(args, f"{event}_strategy") != "steps":
            continue
        if event != "save" and not value:
            needed = (
                "either non-zero --eval_steps or --logging_steps" if event == "eval" else "non-zero --logging_steps"
            )
            yield Problem(name, value, f"`{event}_strategy='steps'` requires {needed}; set it to a number above 0.")
        elif math.isnan(value) or (value > 1 and (math.isinf(value) or value != int(value))):
            text = f"--{name} must be an integer if bigger than 1: update steps, or below 1 a fraction of all."
            yield Problem(name, value, text)


def _best_model(args: TrainingArguments, semantics: Semantics) -> Problems:
    if not args.load_best_model_at_end or args.save_strategy == "best":
        return
    if args.eval_strategy != args.save_strategy:
        evaluates, saves = _plain(args.eval_strategy), _plain(args.save_strategy)
        phrase = "--load_best_model_at_end requires the save and eval strategy to match"
        text = (
            f"{phrase}, as every checkpoint needs an evaluation. `eval_strategy` is {evaluates!r} and `save_strategy` "
            f"is {saves!r}: set both to the same."
        )
        yield Problem("load_best_model_at_end", True, text)
    elif args.eval_strategy == "steps" and args.eval_steps and not _is_multiple(args.save_steps, args.eval_steps):
        whole = "multiple" if args.save_steps < 1 or args.eval_steps < 1 else "round multiple"
        phrase = f"--load_best_model_at_end requires the saving steps to be a {whole} of the evaluation steps"
        text = f"{phrase}, `eval_steps={args.eval_steps}`"
        yield Problem("save_steps", args.save_steps, f"{text}; {_other_interval(args.save_steps, args.eval_steps)}.")


def _other_interval(whole: float, part: float) -> str:
    """Return what to use instead of ``whole``: the multiples of ``part`` around it."""
    if (whole < 1) != (part < 1):
        return "use update steps or fractions for both"
    if not math.isfinite(whole + part):
        return "use a multiple"
    below = int(whole // part) * part
    around = [steps for steps in (below, below + part) if steps and (whole >= 1 or steps < 1)]
    return f"use a multiple, such as {' or '.join(str(round(steps, _DIGITS)) for steps in around)}"


def _plain(strategy: object) -> str:
    return str(getattr(strategy, "value", strategy))


def _is_multiple(whole: float, part: float) -> bool:
    if whole % part == 0:
        return True
    return whole < 1 and part < 1 and (whole * _RATIO_DIGITS) % (part * _RATIO_DIGITS) == 0


def _schedule(args: TrainingArguments, semantics: Semantics) -> Problems:
    if args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy") and args.eval_strategy == "no":
        kind = _plain(args.lr_scheduler_type)
        text = f"lr_scheduler_type {kind} requires an eval strategy; set `eval_strategy` to 'steps' or 'epoch'."
        yield Problem("lr_scheduler_type", args.lr_scheduler_type, text)


def _loaders(args: TrainingArguments, semantics: Semantics) -> Problems:
    if args.dataloader_num_workers != 0:
        return
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_multiprocessing_context"):
        value = getattr(args, name)
        if value not in (None, False):
            phrase = f"--{name} can only be set when data is loaded in a different process"
            yield Problem(name, value, f"{phrase}; set `dataloader_num_workers`, or remove it.")


def _accelerator_config(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Check ``accelerator_config``."""
    config = args.accelerator_config
    if uses_configured_state(args) and configured_state() is None:
        text = (
            "use_configured_state=True requires a pre-configured `AcceleratorState` or `PartialState`; call "
            "accelerate's `PartialState()` or `Accelerator()` before, or remove it."
        )
        yield Problem("accelerator_config", config, text)
    accumulation = config.gradient_accumulation_kwargs or {}
    unknown = sorted(set(accumulation) - _ACCUMULATION_KEYS)
    if unknown:
        text = f"unknown keys {unknown} in gradient_accumulation_kwargs; use {sorted(_ACCUMULATION_KEYS)}."
        yield Problem("accelerator_config", config, text, wrong_type=True)


def _configured_precision(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Compare the precision with that of a state which the script has set up; under DeepSpeed its config decides."""
    if not (semantics.compares_configured_precision and uses_configured_state(args)) or args.deepspeed:
        return
    configured, wanted = configured_precision(), mixed_precision(args, semantics)
    if configured not in (None, wanted):
        text = (
            f"the script has set up accelerate with mixed_precision={configured!r}, but the training arguments say "
            f"{wanted!r}, and AcceleratorState has already been initialized. Set the same precision in both, by `bf16` "
            "or `fp16`, or do not set `use_configured_state`."
        )
        yield Problem("accelerator_config", {"use_configured_state": True}, text)


def _precision(args: TrainingArguments, semantics: Semantics) -> Problems:
    if args.fp16 and args.bf16:
        yield Problem("fp16", True, "At most one of fp16 and bf16 can be True; set one of them.")
    if args.fp16_full_eval and args.bf16_full_eval:
        yield Problem("fp16_full_eval", True, "At most one of fp16 and bf16 can be True for full eval; set one.")
    if args.half_precision_backend == "apex":
        text = "apex is not supported; remove it, torch's automatic mixed precision is used."
        yield Problem("half_precision_backend", "apex", text, unsupported=True)
    if (args.fp16 or args.bf16 or args.bf16_full_eval) and not wants_cpu(args.use_cpu):
        yield from _device_problems(args)
    if args.tf32 and lacks_tf32():
        yield Problem("tf32", True, "--tf32 requires Ampere or a newer GPU; remove it.")
    if args.use_mps_device and accelerator_type() != "mps":
        yield Problem(
            "use_mps_device",
            True,
            "you do not have an MPS-enabled device on this machine; remove it, MPS is used automatically.",
        )
    inherited = os.environ.get(PRECISION_VARIABLE, "no")
    if not (args.fp16 or args.bf16) and inherited not in ("no", "fp16", "bf16"):
        text = f"{PRECISION_VARIABLE}={inherited} in the environment is not supported; use 'bf16'."
        yield Problem("bf16", args.bf16, text, unsupported=True)


def _device_problems(args: TrainingArguments) -> Problems:
    """Yield what the device does not support, and bfloat16 where the device would be a GPU and there is none."""
    kind = accelerator_type()
    if args.fp16 and kind is not None and lacks_fp16(kind):
        yield Problem("fp16", True, "needs torch 2.8 or newer on MPS; use `bf16=True`.", unsupported=True)
    phrase = "Your setup doesn't support bf16/gpu"
    for name in ("bf16", "bf16_full_eval"):
        if getattr(args, name) and kind is None:
            yield Problem(name, True, f"{phrase}, as there is no GPU; set `use_cpu=True` to use bfloat16 on the CPU.")
        elif getattr(args, name) and kind is not None and lacks_bf16(kind):
            yield Problem(name, True, f"{phrase}, as this GPU has no bfloat16; use `fp16=True`.")


def _fsdp(args: TrainingArguments, semantics: Semantics) -> Problems:
    yield from fsdp_problems(args)


def _parallelism(args: TrainingArguments, semantics: Semantics) -> Problems:
    yield from parallelism_problems(args)


Checks = tuple[Callable[["TrainingArguments", Semantics], Problems], ...]

VALUE_CHECKS: Checks = (_types, _bounds, _counts, _choices, _length)
"""Checks of single fields, which hold whatever the others are."""

CHECKS: Checks = (
    *VALUE_CHECKS,
    _steps,
    _best_model,
    _schedule,
    _loaders,
    _accelerator_config,
    _configured_precision,
    _precision,
    deepspeed_problems,
    _fsdp,
    _parallelism,
)


def find_problems(args: TrainingArguments, semantics: Semantics, checks: Checks = CHECKS) -> list[Problem]:
    """Return all problems of resolved arguments, those that are not supported and those that ``checks`` find."""
    found = [*unsupported_problems(args), *_numbers(args)]
    # The other checks compare numbers: use the default for a field that has none, and drop what they say of it.
    replaced = {problem.field: defaults()[problem.field] for problem in found if problem.field in NUMBERS}
    if replaced:
        args = copy.copy(args)
        vars(args).update(replaced)
    for check in checks:
        found.extend(problem for problem in check(args, semantics) if problem.field not in replaced)
    return found
