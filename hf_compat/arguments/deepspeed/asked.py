"""What ``TrainingArguments(deepspeed=...)``, or a launcher that asks for DeepSpeed, makes of a run's arguments."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.deepspeed.config import read_config
from hf_compat.arguments.deepspeed.filling import HfTrainerDeepSpeedConfig
from hf_compat.arguments.deepspeed.plugin import LAUNCHED, DeepSpeedPlugin, fill_from_launcher, launched_config
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.distributed.deepspeed import import_deepspeed, prepare_process
from hf_compat.distributed.devices import is_yes
from hf_compat.errors import ArgumentsError, require_package

__all__ = ["deepspeed_problems", "use_deepspeed"]

_SECTIONS = ("amp", "bf16", "checkpoint", "fp16", "optimizer", "scheduler", "zero_optimization")


def _asked(args: Any) -> Any:
    """Return the config that a run is asked to use, by its arguments or its launcher; None without one."""
    if args.deepspeed:
        return args.deepspeed
    launched = is_yes(os.environ.get("ACCELERATE_USE_DEEPSPEED", "false"))
    return launched_config() if launched else None


def deepspeed_problems(args: Any, semantics: Semantics) -> Iterator[Problem]:
    """Yield what makes a DeepSpeed config of no use; what contradicts the arguments is told when training starts."""
    given = _asked(args)
    if given is None:
        return
    try:
        config = read_config(given)
    except ArgumentsError as error:
        if not str(given).startswith("{"):  # else it was told when the fields were read
            yield Problem("deepspeed", given, error.problems[0].partition("`: ")[2])
        return
    if "zero_optimization" not in config:
        yield Problem("deepspeed", given, "has no section `zero_optimization`: write one, with a `stage` from 0 to 3.")
    for name in _SECTIONS:
        if not isinstance(config.get(name, {}), dict | None):
            yield Problem("deepspeed", given, f"`{name}` is {config[name]!r}: make it a section, in braces.")
    yield from _twice_told(given)


def _twice_told(given: Any) -> Iterator[Problem]:
    """Yield the settings of accelerate's own file that a config file beside it leaves without effect."""
    names = {row.variable.removeprefix("ACCELERATE_").removeprefix("DEEPSPEED_").lower() for row in LAUNCHED}
    told = set(os.environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(","))
    twice = sorted(told & {*names, "mixed_precision"})
    if twice and isinstance(given, str):
        text = f"accelerate's configuration says {', '.join(twice)} too, to no effect: say it in this file alone."
        yield Problem("deepspeed", given, text)


def use_deepspeed(args: Any) -> tuple[HfTrainerDeepSpeedConfig | None, DeepSpeedPlugin | None]:
    """Return the config of a run, filled in from its arguments, and the plugin that answers for it.

    Under ZeRO-3 the processes know each other afterwards, and models that are built or loaded are partitioned.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    given = _asked(args)
    if given is None:
        return None, None
    if importlib.util.find_spec("deepspeed") is None:
        require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    config = HfTrainerDeepSpeedConfig(given)
    if not args.deepspeed:
        fill_from_launcher(config)  # first, so that what contradicts the arguments is seen
    config.trainer_config_process(args)
    config.complete(args)
    plugin = DeepSpeedPlugin(config)
    plugin.set_deepspeed_weakref()
    if config.is_zero3():  # partitions are made by all processes together, and maybe before there is a Trainer
        import_deepspeed(args.device)
        prepare_process(args.launch, args.device)
    return config, plugin
