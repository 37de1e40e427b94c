"""DeepSpeed requested by ``TrainingArguments(deepspeed=...)`` or by a launcher: its config and its problems."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.deepspeed.config import HfTrainerDeepSpeedConfig, read_config
from hf_compat.arguments.deepspeed.plugin import LAUNCHER_SETTINGS, DeepSpeedPlugin, fill_from_launcher, launcher_config
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.distributed.processes import import_deepspeed, prepare_process
from hf_compat.environment import is_yes
from hf_compat.errors import ArgumentsError, require_package

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "autotp_size",
    "config_in_use",
    "deepspeed_problems",
    "partition_from_now_on",
    "requests_deepspeed",
    "use_deepspeed",
    "uses_deepspeed",
]

_SECTIONS = ("amp", "bf16", "checkpoint", "fp16", "optimizer", "scheduler", "zero_optimization")


def _requested_config(args: TrainingArguments) -> dict[str, Any] | str | None:
    """Return the DeepSpeed config given by the arguments or the launcher; None without DeepSpeed."""
    given: dict[str, Any] | str | None = args.deepspeed
    launched = is_yes(os.environ.get("ACCELERATE_USE_DEEPSPEED", "false"))
    return given or (launcher_config() if launched else None)


def requests_deepspeed(args: TrainingArguments) -> bool:
    """Return whether ``args`` or the launcher request DeepSpeed."""
    return _requested_config(args) is not None


def deepspeed_problems(args: TrainingArguments, semantics: Semantics) -> Iterator[Problem]:
    """Yield the problems of a DeepSpeed config; contradictions to the arguments are raised when training starts."""
    given = _requested_config(args)
    if given is None:
        return
    try:
        config = read_config(given)
    except ArgumentsError as error:
        if not str(given).startswith("{"):  # else it was reported when the fields were resolved
            text = error.problems[0].partition("`: ")[2]
            yield Problem("deepspeed", given, text, wrong_type=isinstance(error, TypeError))
        return
    if "zero_optimization" not in config:
        yield Problem("deepspeed", given, "has no section `zero_optimization`; add it, with a `stage` from 0 to 3.")
    for name in _SECTIONS:
        if not isinstance(config.get(name, {}), dict | None):
            yield Problem(
                "deepspeed", given, f"`{name}` is {config[name]!r}, not a section; write it as an object in braces."
            )
    yield from _duplicate_settings(given)


def _duplicate_settings(given: object) -> Iterator[Problem]:
    """Yield the settings in accelerate's configuration that the DeepSpeed config file overrides."""
    names = {row.variable.removeprefix("ACCELERATE_").removeprefix("DEEPSPEED_").lower() for row in LAUNCHER_SETTINGS}
    given_names = set(os.environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(","))
    duplicates = sorted(given_names & {*names, "mixed_precision"})
    if duplicates and isinstance(given, str):
        text = f"overrides {', '.join(duplicates)} of accelerate's configuration; set them in this file only."
        yield Problem("deepspeed", given, text)


def use_deepspeed(args: TrainingArguments) -> tuple[HfTrainerDeepSpeedConfig | None, DeepSpeedPlugin | None]:
    """Return the DeepSpeed config, filled in from the arguments, and its plugin.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    given = _requested_config(args)
    if given is None:
        return None, None
    if importlib.util.find_spec("deepspeed") is None:
        require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    config = HfTrainerDeepSpeedConfig(given)
    if not args.deepspeed:
        fill_from_launcher(config)  # first, so that contradictions to the arguments are found
    config.trainer_config_process(args)
    config.complete(args)
    plugin = DeepSpeedPlugin(config)
    plugin.set_deepspeed_weakref()
    return config, plugin


def uses_deepspeed(args: TrainingArguments) -> bool:
    """Return whether runs use DeepSpeed, at the request of ``args``, of the launcher, or of a keyword."""
    return args.hf_deepspeed_config is not None


def config_in_use(args: TrainingArguments) -> HfTrainerDeepSpeedConfig:
    """Return the config of arguments that are known to use DeepSpeed."""
    config = args.hf_deepspeed_config
    assert config is not None, "the strategy is DeepSpeed"
    return config


def autotp_size(args: TrainingArguments) -> int:
    """Return the number of ranks among which DeepSpeed splits each matrix; 1 without DeepSpeed."""
    return 1 if args.hf_deepspeed_config is None else args.hf_deepspeed_config.tensor_parallel_size


def partition_from_now_on(args: TrainingArguments) -> None:
    """Under ZeRO-3 initialize the process group: models are partitioned from then on while they are built.

    Partitioning is collective, and may come before there is a Trainer.
    """
    if args.hf_deepspeed_config is not None and args.hf_deepspeed_config.is_zero3():
        import_deepspeed(args.device)
        prepare_process(args.launch, args.device)
