"""Checks of ``TrainingArguments``, alone and with the data of a Trainer; all problems come in one error."""

from __future__ import annotations

import copy
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed import config_in_use, deepspeed_problems
from hf_compat.arguments.fields import DeclaredField, declared
from hf_compat.arguments.fsdp import fsdp_problems
from hf_compat.arguments.parallelism import parallelism_problems, read_sequence_parallelism
from hf_compat.arguments.problems import Number, Problem, nearest_value
from hf_compat.arguments.process_facts import PRECISION_VARIABLE, amp_backend, mixed_precision, uses_configured_state
from hf_compat.arguments.releases import (
    OLDEST_RELEASE,
    SINCE,
    Semantics,
    effective_args,
    installed_release,
    resolve_semantics,
)
from hf_compat.distributed.accelerate_state import configured_precision, configured_state
from hf_compat.distributed.accelerators import accelerator_type, lacks_bf16, lacks_fp16, lacks_tf32, wants_cpu
from hf_compat.environment import is_switched_on
from hf_compat.errors import is_installed

if TYPE_CHECKING:
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism
    from hf_compat.arguments.training_arguments import TrainingArguments

# Checks of `TrainingArguments`: invalid values and fields that contradict each other; all of them are found.


Problems = Iterator[Problem]

_DIGITS = 6
_RATIO_DIGITS = 10**_DIGITS  # ratios are compared as upstream does, past the rounding of floats
_ACCUMULATION_KEYS = {"num_steps", "sync_each_batch", "sync_with_dataloader", "adjust_scheduler"}


def _refused(args: TrainingArguments) -> Problems:
    """Yield the problem of each field whose value is not supported."""
    for name, item in declared(type(args)).items():
        value, effect = getattr(args, name), item.effect
        if effect.handling == "unsupported" and value != item.default and value not in effect.harmless:
            yield Problem(name, value, f"{effect.target}.", unsupported=True)


def _no_numbers(args: TrainingArguments) -> Problems:
    """Yield the problem of each field that is to be a number, and is none."""
    for name, item in declared(type(args)).items():
        if isinstance(item.valid, Number):
            yield from item.valid.type_problems(item, getattr(args, name))


def _declared(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Check each field against what its declaration says is valid."""
    for name, item in declared(type(args)).items():
        if item.valid is not None:
            yield from item.valid.problems(item, getattr(args, name), semantics.release)


def _special(args: TrainingArguments, semantics: Semantics) -> Problems:
    """Check what is valid for one field alone, or goes by release."""
    options = args.lr_scheduler_kwargs
    is_bad_json = isinstance(options, str) and options.startswith("{")  # reported when it was read
    if not (isinstance(options, Mapping | None) or is_bad_json):
        yield Problem("lr_scheduler_kwargs", options, "must be a dict, or JSON of one.", wrong_type=True)
    steps = args.eval_accumulation_steps
    if steps is not None and (not isinstance(steps, Integral) or int(steps) == 0):  # of -2 every second batch, as of 2
        also = (ZeroDivisionError,) if steps == 0 else ()
        text, kind = "must be an integer other than 0, or None.", not isinstance(steps, Integral)
        yield Problem("eval_accumulation_steps", steps, text, wrong_type=kind, also=also)
    if "tpu_metrics_debug" in args.debug:
        yield Problem("debug", "tpu_metrics_debug", "TPUs are not supported; remove it.", unsupported=True)
    if args.max_steps < 0 and not math.isfinite(args.num_train_epochs):
        text = "must be finite; to end a run by its update steps set `max_steps`."
        yield Problem("num_train_epochs", args.num_train_epochs, text)
    warmup = args.warmup_steps
    if warmup == math.inf:
        yield Problem("warmup_steps", warmup, "must be finite.", also=(OverflowError,))
    if isinstance(warmup, float) and not warmup.is_integer() and not semantics.warmup_below_one_is_ratio:
        text = "must be an integer; for a fraction of all update steps set `warmup_ratio`."
        yield Problem("warmup_steps", warmup, text)


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
    if args.metric_for_best_model == "" and args.eval_strategy != "no":
        yield Problem("metric_for_best_model", "", "must be the name of a metric; set it, or None.")
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


def _other_interval(multiple: float, part: float) -> str:
    """Return what to use instead of ``multiple``: the multiples of ``part`` around it."""
    if (multiple < 1) != (part < 1):
        return "use update steps or fractions for both"
    if not math.isfinite(multiple + part):
        return "use a multiple"
    below = int(multiple // part) * part
    around = [steps for steps in (below, below + part) if steps and (multiple >= 1 or steps < 1)]
    return f"use a multiple, such as {' or '.join(str(round(steps, _DIGITS)) for steps in around)}"


def _plain(strategy: object) -> str:
    return str(getattr(strategy, "value", strategy))


def _is_multiple(number: float, part: float) -> bool:
    if number % part == 0:
        return True
    return number < 1 and part < 1 and (number * _RATIO_DIGITS) % (part * _RATIO_DIGITS) == 0


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

VALUE_CHECKS: Checks = (_declared, _special)
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
    no_numbers = list(_no_numbers(args))
    found = [*_refused(args), *no_numbers]
    # The other checks compare numbers: use the default for a field that has none, and drop what they say of it.
    ours = declared(type(args))
    replaced = {problem.field: ours[problem.field].default for problem in no_numbers}
    if replaced:
        args = copy.copy(args)
        vars(args).update(replaced)
    for check in checks:
        found.extend(problem for problem in check(args, semantics) if problem.field not in replaced)
    return found


# Contradictions between a DeepSpeed config and other arguments, which a Trainer refuses.


_OFFLOADED = ("offload_param", "offload_optimizer")
"""Sections of ``zero_optimization`` that offload to the CPU or to a disk."""


def field_contradictions(args: TrainingArguments) -> Iterator[str]:
    """Yield a message for each field that is not supported with DeepSpeed beside another one, or with ZeRO-3."""
    if args.save_only_model and args.load_best_model_at_end:
        yield (
            "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`: it loads full "
            "checkpoints only. Set one of them to False."
        )
    if args.auto_find_batch_size and config_in_use(args).is_zero3():
        yield (
            "`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3, whose parameters cannot be gathered "
            "after an error in the middle of a pass. Set `per_device_train_batch_size`, or use ZeRO-1 or 2."
        )


def config_contradictions(args: TrainingArguments, *, in_background: bool) -> Iterator[str]:
    """Yield a message for each key of the config that the fields, or the ranks, do not allow.

    Args:
        args: The training arguments.
        in_background: Whether checkpoints are saved in the background.
    """
    deepspeed = config_in_use(args)
    config = deepspeed.config
    yield from _sequence_problems(read_sequence_parallelism(args), config)
    if deepspeed.is_zero3():
        yield from _zero_3_problems(args.world_size, config["zero_optimization"])
    yield from _writer_problems(args, config, in_background=in_background)
    yield from _universal_problems(config, loads_best=args.load_best_model_at_end)


def _sequence_problems(sequences: SequenceParallelism | None, config: dict[str, Any]) -> Iterator[str]:
    """Yield a message if ``config`` has another number of ranks share sequences than ``sequences``."""
    size, wanted = config.get("sequence_parallel_size"), 1 if sequences is None else sequences.size
    if size not in (None, wanted):
        yield (
            f"`sequence_parallel_size={size}` in the DeepSpeed config, but `sp_size` of `parallelism_config` is "
            f"{wanted}: the Trainer shares out sequences and batches by the latter alone. Remove the former, and set "
            "`sp_size`."
        )


def _zero_3_problems(world_size: int, zero: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each key of the section ``zero`` that ZeRO-3 reads, as no other stage does, and fails on."""
    size = zero.get("zero_hpz_partition_size", 1)
    if isinstance(size, int) and 1 < size < world_size and world_size % size:
        yield (
            f"`zero_optimization.zero_hpz_partition_size={size}` in the DeepSpeed config does not divide the "
            f"{world_size} processes into groups of that size. Set a divisor of {world_size}, or 1."
        )
    offloaded = [name for name in _OFFLOADED if (zero.get(name) or {}).get("device") == "nvme"]
    if offloaded and not _loads_async_io():
        keys = " and ".join(f"`zero_optimization.{name}.device=nvme`" for name in offloaded)
        yield (
            f"{keys} in the DeepSpeed config: DeepSpeed cannot build its op `async_io` here. Install libaio "
            "with its header (libaio-dev or libaio-devel) and ninja, or set the device to cpu. `ds_report` lists what "
            "it can build."
        )


def _loads_async_io() -> bool:
    """Return whether DeepSpeed's op that reads and writes a disk is installed, or can be built."""
    git_version_info = importlib.import_module("deepspeed.git_version_info")
    if git_version_info.installed_ops.get("async_io"):
        return True
    return bool(importlib.import_module("deepspeed.ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False))


def _writer_problems(args: TrainingArguments, config: dict[str, Any], *, in_background: bool) -> Iterator[str]:
    """Yield a message if ``config`` has DeepSpeed write checkpoints in a way that the folders do not allow."""
    writer = (config.get("checkpoint") or {}).get("writer")
    decoupled = isinstance(writer, dict) and writer.get("decoupled")
    if decoupled or config.get("datastates_ckpt", False) is not False:
        name = "checkpoint.writer.decoupled" if decoupled else "datastates_ckpt"
        yield (
            f"`{name}` in the DeepSpeed config is not supported: DeepSpeed would still be writing files after the "
            "checkpoint folder has appeared. Remove it, and set `save_async=True` to save in the background."
        )
    elif writer is not None and in_background:
        yield (
            f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE) is not supported with `checkpoint.writer` in "
            "the DeepSpeed config: DeepSpeed's writer would copy the files once more, into its own buffers. Remove one "
            "of the two."
        )


def _universal_problems(config: dict[str, Any], *, loads_best: bool) -> Iterator[str]:
    """Yield a message for each argument that contradicts resuming a universal checkpoint, if ``config`` requests it."""
    if not (config.get("checkpoint") or {}).get("load_universal"):
        return
    name = "`checkpoint.load_universal=true` in the DeepSpeed config"
    if (config.get("zero_optimization") or {}).get("stage", 0) == 0:
        yield (
            f"{name} is not supported without ZeRO: DeepSpeed reads universal checkpoints into ZeRO's optimizers. "
            "Set `zero_optimization.stage` to 1, 2 or 3."
        )
    if loads_best:
        yield (
            f"{name} with `load_best_model_at_end=True` is not supported: the run's own checkpoints are not "
            "universal, so the best one could not be loaded at the end. Set one of them to False, or save once with "
            "the new number of processes and resume that checkpoint without `load_universal`."
        )


# Contradictions between training arguments and the data and metrics that a Trainer is given, and notes about them.


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
    args, problems = effective_args(args), []
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
    args, problems = effective_args(args), []
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


def doubtful_values(args: TrainingArguments) -> Iterator[str]:
    """Yield what a Trainer that is made warns of: values that mean the opposite of what they say."""
    found: dict[str, list[str]] = {}  # one field by its names
    for item in fields(args):
        value = getattr(args, item.name)
        is_flag = isinstance(item.default, bool) or str(item.type) == "bool | None"
        if is_flag and isinstance(value, str) and value.lower() in _SAYS_NO:
            effect = item.effect if isinstance(item, DeclaredField) else None
            name = effect.target if effect is not None and effect.handling == "alias" else item.name
            found.setdefault(name, []).append(f"`{item.name}={value!r}`")
    for names in found.values():
        yield f"{', '.join(names)} is a text, which counts as True, as in transformers. Set False, unquoted."


_SAYS_NO = ("false", "no", "off", "0")


def setup_notes(args: TrainingArguments, semantics: Semantics, *, is_stream: bool) -> Iterator[str]:
    """Yield what a Trainer that is made logs at level info: fields that have no effect, and what replaces them."""
    args, is_old = effective_args(args), semantics.release.major < 5
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


# The trackers in `report_to`: which there are, and which are installed.


TRACKERS: dict[str, str] = {
    "azure_ml": "azureml.core.run",
    "comet_ml": "comet_ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "codecarbon": "codecarbon",
    "clearml": "clearml",
    "swanlab": "swanlab",
    "trackio": "trackio",
    "kubeflow": "",
    "flyte": "flytekit",
}
"""Name in ``report_to`` → the module that it needs, in the order of ``"all"``; none for Kubeflow's own server."""


def _has_comet_key() -> bool:
    return "COMET_API_KEY" in os.environ or Path.home().joinpath(".comet.config").exists()


def _is_in_kubeflow_job() -> bool:
    """Return whether a Kubeflow job wants to hear of the run, and the installed transformers supports it."""
    is_off = os.environ.get("DISABLE_KUBEFLOW_INTEGRATION", "").upper() == "TRUE"  # no other word, as in transformers
    if is_off or "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return False
    release = max(installed_release(), OLDEST_RELEASE)
    return is_installed("transformers") and resolve_semantics(str(release)).reports_to_job


_USABLE: dict[str, Callable[[], bool]] = {
    "azure_ml": lambda: not is_installed("mlflow"),  # which writes there too
    "comet_ml": _has_comet_key,
    "flyte": lambda: False,  # works in a Flyte task alone
    "kubeflow": _is_in_kubeflow_job,
    "mlflow": lambda: not is_switched_on("DISABLE_MLFLOW_INTEGRATION"),
    "wandb": lambda: not is_switched_on("WANDB_DISABLED"),
}
"""Name in ``report_to`` → whether ``"all"`` contains it where it is installed; the others always."""


def _is_in_all(name: str, module: str) -> bool:
    """Return whether ``"all"`` contains the tracker: as in transformers, if it is installed and can be used."""
    return (name not in _USABLE or _USABLE[name]()) and (not module or is_installed(module))


def tracker_names(
    report_to: str | list[str] | tuple[str, ...] | None, semantics: Semantics
) -> tuple[list[str], list[Problem]]:
    """Return the trackers to report to, and a problem for each unknown name.

    Args:
        report_to: A name, a list of names, ``"all"``, ``"none"`` or None, which means all or none by release.
        semantics: The behaviours of the release.
    """
    if report_to is None:
        report_to = "none" if semantics.reports_to_none else "all"
    names = list(report_to) if isinstance(report_to, list | tuple) else [report_to]
    if names == ["none"]:
        return [], []
    if names == ["all"]:
        return [name for name, module in TRACKERS.items() if _is_in_all(name, module)], []
    unknown = [name for name in names if not isinstance(name, str) or name not in TRACKERS]
    text = (
        f"is not supported, only {', '.join(TRACKERS)} are supported. For another tracker pass a Lightning logger: "
        "Trainer(lightning={'logger': ...})."
    )
    near = [(name, nearest_value(name, TRACKERS)) for name in unknown]
    texts = [f"{question}{name!r} {text}" if question else text for name, question in near]
    return names, [
        Problem("report_to", name, told, unsupported=True) for name, told in zip(unknown, texts, strict=True)
    ]


def with_job_tracker(names: list[str], semantics: Semantics) -> list[str]:
    """Return the trackers ``names`` and, in a Kubeflow job, Kubeflow's, which gets every run."""
    is_missing = semantics.reports_to_job and "kubeflow" not in names
    return [*names, "kubeflow"] if is_missing and _is_in_kubeflow_job() else names


def reports_by_default(args: TrainingArguments) -> bool:
    """Return whether the trackers are those of a run that names none."""
    semantics = resolve_semantics(args.semantics)
    names = tracker_names(None, semantics)[0]
    return args.report_to in (names, with_job_tracker(names, semantics))
