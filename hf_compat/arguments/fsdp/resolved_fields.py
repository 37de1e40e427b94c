"""Resolves the fields ``fsdp`` and ``fsdp_config`` into the form of the reproduced release."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.fsdp.keys import SHARDING_STRATEGIES, fsdp_options
from hf_compat.arguments.fsdp.settings import fsdp_problems, ignored_keys, read_fsdp
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.arguments.releases.versions import SINCE

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["resolve_fsdp"]

logger = logging.getLogger(__name__)

_UNSET = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
"""Keys that every ``fsdp_config`` has after construction."""


def resolve_fsdp(args: TrainingArguments, semantics: Semantics) -> Iterator[Problem]:
    """Read ``fsdp_config`` and convert both fields into the form of the reproduced release.

    Invalid fields keep the options of ``fsdp``; the checks report them.
    """
    is_switch = semantics.release >= SINCE["makes_fsdp_a_switch"]
    has_old_fields = _least_parameters(args) > 0 or bool(args.fsdp_transformer_layer_cls_to_wrap)
    if is_switch and not args.fsdp and not has_old_fields:
        if isinstance(args.fsdp_config, str | Path):
            text = "has no effect without `fsdp`; set `fsdp` too, or remove it."
            yield Problem("fsdp_config", args.fsdp_config, text)
        return
    try:
        config = _loaded(args.fsdp_config)
    except (OSError, TypeError, ValueError) as error:
        text = f"{error}; pass a dict, JSON or the path of a JSON file."
        kinds = (AttributeError,) if isinstance(error, TypeError) else (type(error),)
        yield Problem("fsdp_config", args.fsdp_config, text, also=kinds)
        return
    if has_old_fields:
        _apply_old_fields(args, config, is_switch)
    if isinstance(config.get("transformer_layer_cls_to_wrap"), str):
        config["transformer_layer_cls_to_wrap"] = [config["transformer_layer_cls_to_wrap"]]
    args.fsdp_config = _UNSET | config
    if not any(fsdp_problems(args)):
        _tell_overruled(args)
        _advise(args, is_switch)
        _apply_options(args, is_switch)


def _loaded(given: object) -> dict[str, Any]:
    """Return a copy of ``fsdp_config`` with its keys without prefix.

    Raises:
        OSError: If the file cannot be read.
        TypeError: If it is not a mapping.
        ValueError: If the file is not JSON.
    """
    config = json.loads(Path(given).read_text("utf-8")) if isinstance(given, str | Path) else given
    config = {} if config is None else config
    if not isinstance(config, dict):
        raise TypeError(f"is a {type(config).__name__}")
    return {key.removeprefix("fsdp_"): value for key, value in config.items()}


def _least_parameters(args: TrainingArguments) -> int:
    """Return ``fsdp_min_num_params``; 0 for a value that is no integer, which the checks report."""
    return int(args.fsdp_min_num_params) if isinstance(args.fsdp_min_num_params, Integral) else 0


def _apply_old_fields(args: TrainingArguments, config: dict[str, Any], is_switch: bool) -> None:
    """Set the keys of ``fsdp_config`` that two old fields are now."""
    if _least_parameters(args) > 0:
        text = "`fsdp_min_num_params` is deprecated: set it in `fsdp_config`."
        warnings.warn(text, FutureWarning, stacklevel=6)
        config["min_num_params"] = max(config.get("min_num_params") or 0, _least_parameters(args))
        if is_switch:
            config.setdefault("auto_wrap_policy", "SIZE_BASED_WRAP")
    name = args.fsdp_transformer_layer_cls_to_wrap
    if name:
        text = "`fsdp_transformer_layer_cls_to_wrap` is deprecated: set it in `fsdp_config`."
        warnings.warn(text, FutureWarning, stacklevel=6)
        listed = config.get("transformer_layer_cls_to_wrap") or []
        listed = [listed] if isinstance(listed, str) else list(listed)
        config["transformer_layer_cls_to_wrap"] = [*listed, *([] if name in listed else [name])]


def _tell_overruled(args: TrainingArguments) -> None:
    """Log that ``fsdp`` names another sharding strategy than ``fsdp_config``, whose key is what counts, as in 5.24."""
    named = [option for option in fsdp_options(args.fsdp) if option in SHARDING_STRATEGIES]
    settings = read_fsdp(args)
    if named and settings is not None and settings.sharding not in named:
        logger.warning(
            "`fsdp=%r` has no effect: `fsdp_config` has 'reshard_after_forward': %r. Remove one of them.",
            named[0],
            args.fsdp_config["reshard_after_forward"],
        )


def _advise(args: TrainingArguments, is_switch: bool) -> None:
    """Log what the release advises against, and what has no effect."""
    if not args.fsdp:
        return
    for (reason, setting), keys in ignored_keys(args).items():
        if keys:
            logger.warning(
                "`fsdp_config`: %s %s no effect with %s, in transformers either. Remove them, or set %s.",
                ", ".join(keys),
                "has" if len(keys) == 1 else "have",
                reason,
                setting,
            )
    gathers = is_switch or args.fsdp is True or {"full_shard", "hybrid_shard"} & set(fsdp_options(args.fsdp))
    if gathers and (args.activation_checkpointing or args.gradient_checkpointing):
        logger.warning(
            "`activation_checkpointing=True` introduces a redundant AllGather in the backward pass: with FSDP, use "
            "`activation_checkpointing` in `fsdp_config` instead."
        )
    if not is_switch:
        return
    if args.fsdp is not True:
        kind = "string" if isinstance(args.fsdp, str) else "list"
        logger.warning(
            "Passing `fsdp` as a %s is deprecated: use `fsdp=True`, and set the rest in `fsdp_config`.", kind
        )
    if str(args.fsdp_config.get("version", 2)) == "1":
        logger.warning("FSDP1 (`fsdp_config['version'] = 1`) is deprecated: use version 2, the default.")


def _apply_options(args: TrainingArguments, is_switch: bool) -> None:
    options = fsdp_options(args.fsdp)
    if not is_switch:
        args.fsdp = [FSDPOption.FULL_SHARD] if args.fsdp is True else [FSDPOption(option) for option in options]
        return
    config = args.fsdp_config
    for option in options:
        if option in SHARDING_STRATEGIES:
            by_name = str(config.get("version", 2)) == "1"
            config.setdefault("reshard_after_forward", option if by_name else option == "full_shard")
        elif option == "offload":
            config.setdefault("cpu_offload", True)
    if args.fsdp:
        args.fsdp = True
