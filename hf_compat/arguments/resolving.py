"""Resolves the values given to ``TrainingArguments`` into their final form, in upstream's order."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.checks import tracker_names, with_job_tracker
from hf_compat.arguments.derived import default_event_folder, evaluates
from hf_compat.arguments.enums import DebugOption, OptimizerNames
from hf_compat.arguments.fields import (
    apply_aliases,
    apply_checkpointing_alias,
    apply_tokens_alias,
    apply_warmup_ratio,
    declared,
)
from hf_compat.arguments.fsdp import resolve_fsdp
from hf_compat.arguments.problems import Problem, nearest_value
from hf_compat.arguments.releases import SINCE, Semantics, resolve_semantics, semantics_problem
from hf_compat.distributed.accelerators import accelerator_type
from hf_compat.errors import ArgumentsError, warn_user
from hf_compat.log_files import library_logger

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

logger = logging.getLogger(__name__)

Problems = Iterator[Problem]

_METRIC_SCHEDULES = ("reduce_lr_on_plateau", "greedy")


def _paths(args: TrainingArguments, semantics: Semantics) -> Problems:
    for name in ("output_dir", "logging_dir"):
        value = getattr(args, name)
        if not isinstance(value, str | os.PathLike | None):
            yield Problem(name, value, "must be the path of a folder.", wrong_type=True)
            setattr(args, name, None)
    if args.output_dir is None:
        logger.info("No output directory specified, defaulting to 'trainer_output': set `output_dir` for another.")
    args.output_dir = os.path.expanduser("trainer_output" if args.output_dir is None else args.output_dir)
    if args.logging_dir is None and semantics.release < SINCE["drops_logging_dir"]:
        args.logging_dir = default_event_folder(args)
    elif args.logging_dir is not None and semantics.release >= SINCE["drops_logging_dir"]:
        text = "`logging_dir` is deprecated: set the environment variable TENSORBOARD_LOGGING_DIR."
        warn_user(text, FutureWarning)
    if args.logging_dir is not None:
        args.logging_dir = os.path.expanduser(args.logging_dir)


def _typed(value: object) -> object:
    """Return ``value`` with strings that are bools or numbers converted, at any depth of dicts."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def _dicts(args: TrainingArguments, semantics: Semantics) -> Problems:
    for name in args._VALID_DICT_FIELDS:
        value = getattr(args, name, None)
        if not isinstance(value, str) or not value.startswith("{"):
            continue
        try:
            setattr(args, name, _typed(json.loads(value)))
        except (json.JSONDecodeError, RecursionError) as error:  # braces in braces exhaust the stack
            yield Problem(name, value, f"is not valid JSON ({error}); fix it, or pass a dict.")


def _aliases(args: TrainingArguments, semantics: Semantics) -> None:
    apply_aliases(args)
    apply_checkpointing_alias(args, semantics)
    apply_tokens_alias(args, semantics)
    apply_warmup_ratio(args, semantics)


def _switches(args: TrainingArguments, semantics: Semantics) -> None:
    if args.use_mps_device:
        text = "`use_mps_device` is deprecated: remove it, MPS is used automatically."
        warn_user(text, FutureWarning)
    if args.disable_tqdm is None:
        args.disable_tqdm = library_logger().getEffectiveLevel() > logging.WARNING
    if isinstance(args.include_num_input_tokens_seen, bool):
        args.include_num_input_tokens_seen = "all" if args.include_num_input_tokens_seen else "no"


def _enums(args: TrainingArguments, semantics: Semantics) -> Problems:
    for name, item in declared(type(args)).items():
        kind, value = item.enum, getattr(args, name)
        if kind is None:
            continue
        try:
            setattr(args, name, kind(value))
        except ValueError as error:
            usual = [member.value for member in kind if member is not OptimizerNames.ADAMW_HF]  # which is deprecated
            yield Problem(name, value, f"{nearest_value(value, usual)}{error}")
    options = args.debug.split() if isinstance(args.debug, str) else (args.debug or [])
    try:
        args.debug = [DebugOption(option) for option in options]
    except ValueError as error:
        yield Problem("debug", args.debug, str(error))


_SMALLER_IS_BETTER = frozenset(("cer", "error", "mae", "mse", "perplexity", "ppl", "rmse", "ter", "wer"))
"""Words in the names of metrics of which a smaller value is better."""


def _evaluation(args: TrainingArguments, semantics: Semantics) -> None:
    args.do_eval = evaluates(args)
    if args.eval_delay is None:  # the default until 4.56
        args.eval_delay = 0
    if args.eval_strategy == "steps" and args.eval_steps in (None, 0):
        args.eval_steps = args.logging_steps
        logger.info("using `logging_steps` to initialize `eval_steps` to %s", args.logging_steps)
    if args.metric_for_best_model is None and (
        args.load_best_model_at_end or args.lr_scheduler_type in _METRIC_SCHEDULES
    ):
        args.metric_for_best_model = "loss"
    if args.greater_is_better is None and isinstance(args.metric_for_best_model, str):
        name = args.metric_for_best_model
        args.greater_is_better = not name.endswith("loss")
        if args.greater_is_better and _SMALLER_IS_BETTER & {*re.split(r"[^a-z]+", name.lower())}:
            logger.warning(
                "`metric_for_best_model=%r`: the largest value counts as the best, as with transformers, since its "
                "name does not end in `loss`. Set `greater_is_better=False` if the smallest is.",
                name,
            )


def _whole_steps(args: TrainingArguments, semantics: Semantics) -> None:
    for event in ("logging", "eval", "save"):
        name = f"{event}_steps"
        steps = getattr(args, name)
        is_whole = isinstance(steps, Real) and float(steps) > 1 and float(steps).is_integer()
        if getattr(args, f"{event}_strategy") == "steps" and is_whole:
            setattr(args, name, int(steps))
    takes_whole_warmup = not semantics.warmup_below_one_is_ratio
    if takes_whole_warmup and isinstance(args.warmup_steps, float) and args.warmup_steps.is_integer():
        args.warmup_steps = int(args.warmup_steps)  # a command line gives a float


def _trackers(args: TrainingArguments, semantics: Semantics) -> Problems:
    names, problems = tracker_names(args.report_to, semantics)
    args.report_to = with_job_tracker(names, semantics)
    yield from problems


def _as_accelerator_config(value: Any) -> AcceleratorConfig:
    if value is None:
        return AcceleratorConfig()
    if isinstance(value, AcceleratorConfig):
        return value
    if isinstance(value, str | Path):
        return AcceleratorConfig.from_json_file(value)
    # An AcceleratorConfig of transformers is converted through its ``to_dict``.
    return AcceleratorConfig(**(value.to_dict() if hasattr(value, "to_dict") else value))


def _accelerator_config(args: TrainingArguments, semantics: Semantics) -> Problems:
    given = args.accelerator_config
    args.accelerator_config = AcceleratorConfig()
    if callable(given):
        phrase = "Tried passing in a callable to `accelerator_config`, such as a class, which is not supported"
        text = f"{phrase}; pass an instance, `AcceleratorConfig(...)`, or a dict."
        yield Problem("accelerator_config", given, text, unsupported=True)
        return
    try:
        args.accelerator_config = _as_accelerator_config(given)
    except ArgumentsError as error:
        yield Problem("accelerator_config", given, " ".join(error.problems))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        known = ", ".join(item.name for item in fields(AcceleratorConfig))
        text = f"{error}; pass a dict or a JSON file with the keys {known}."
        yield Problem("accelerator_config", given, text, wrong_type=isinstance(error, TypeError), also=(type(error),))
    accumulation = args.accelerator_config.gradient_accumulation_kwargs
    if not isinstance(accumulation, Mapping | None):
        args.accelerator_config.gradient_accumulation_kwargs = None
        shown = {"gradient_accumulation_kwargs": accumulation}
        yield Problem("accelerator_config", shown, "must be a dict of keywords.", wrong_type=True)
    if args.accelerator_config.split_batches:
        logger.info(
            "Using `split_batches=True` in `accelerator_config`: `per_device_train_batch_size` is the size of a batch "
            "that is split across all processes."
        )
    num_steps = (args.accelerator_config.gradient_accumulation_kwargs or {}).get("num_steps")
    if num_steps is not None and args.gradient_accumulation_steps == 1:
        args.gradient_accumulation_steps = num_steps


def _compilation(args: TrainingArguments, semantics: Semantics) -> None:
    is_named = args.torch_compile_mode is not None or args.torch_compile_backend is not None
    args.torch_compile = args.torch_compile or is_named
    if args.torch_compile and args.torch_compile_backend is None:
        on_hpu = not args.use_cpu and accelerator_type() == "hpu"
        args.torch_compile_backend = "hpu_backend" if on_hpu else "inductor"


def _loaders(args: TrainingArguments, semantics: Semantics) -> None:
    if args.use_cpu:
        args.dataloader_pin_memory = False
    workers, method = args.dataloader_num_workers, args.dataloader_multiprocessing_context
    if sys.platform == "darwin" and workers not in (0, 1) and method is None and accelerator_type() == "mps":
        args.dataloader_multiprocessing_context = "fork"  # the only one that works with MPS


def _release_defaults(args: TrainingArguments, semantics: Semantics) -> None:
    """Set fields whose default depends on the release to the one that its scripts expect."""
    if semantics.release < SINCE["leaves_local_rank"]:
        args.local_rank = args.local_process_index


STEPS: tuple[Callable[[TrainingArguments, Semantics], Problems | None], ...] = (
    _paths,
    _dicts,
    _aliases,
    _switches,
    _enums,
    _evaluation,
    _whole_steps,
    _trackers,
    _accelerator_config,
    _compilation,
    _loaders,
    _release_defaults,
    resolve_fsdp,
)


def semantics_of(args: TrainingArguments) -> tuple[Semantics, list[Problem]]:
    """Return the behaviours that ``args`` request, and the problem if they are none that can be followed."""
    problem = semantics_problem(args.semantics)
    return (resolve_semantics(args.semantics), []) if problem is None else (resolve_semantics("corrected"), [problem])


def resolve(args: TrainingArguments, semantics: Semantics) -> list[Problem]:
    """Fill in fields that depend on others and convert every value into its final form.

    Returns:
        The values that cannot be converted; they are left unchanged.
    """
    return [problem for step in STEPS for problem in step(args, semantics) or ()]
