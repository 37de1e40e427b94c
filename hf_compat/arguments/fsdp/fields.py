"""The fields ``fsdp`` and ``fsdp_config`` in the shape that scripts for a release expect after construction."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.fsdp.keys import SHARDINGS, words_of
from hf_compat.arguments.fsdp.settings import fsdp_problems
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.arguments.releases.versions import SINCE

__all__ = ["shape_fsdp"]

_UNSET = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
"""What every ``fsdp_config`` holds after construction."""


def shape_fsdp(args: Any, semantics: Semantics) -> Iterator[Problem]:
    """Read ``fsdp_config`` and bring both fields into the followed release's shape.

    Fields of which something is wrong keep the words of ``fsdp``, for the checks to tell of them.
    """
    newer = semantics.release >= SINCE["makes_fsdp_a_switch"]
    older_fields = bool(args.fsdp_min_num_params or args.fsdp_transformer_layer_cls_to_wrap)
    if newer and not args.fsdp and not older_fields:
        if isinstance(args.fsdp_config, str | Path):
            text = "asks for nothing without `fsdp`; set it too, or drop this."
            yield Problem("fsdp_config", args.fsdp_config, text)
        return
    try:
        config = _loaded(args.fsdp_config)
    except (OSError, TypeError, ValueError) as error:
        yield Problem("fsdp_config", args.fsdp_config, f"{error}; pass a dict, JSON or the path of a JSON file.")
        return
    if older_fields:
        _carry_older(args, config, newer)
    if isinstance(config.get("transformer_layer_cls_to_wrap"), str):
        config["transformer_layer_cls_to_wrap"] = [config["transformer_layer_cls_to_wrap"]]
    args.fsdp_config = _UNSET | config
    if not any(fsdp_problems(args)):
        _carry_words(args, newer)


def _loaded(given: Any) -> dict[str, Any]:
    """Return a copy of ``fsdp_config``, its keys without prefix.

    Raises:
        OSError: If the file it names cannot be read.
        TypeError: If it is no mapping.
        ValueError: If the file holds no JSON.
    """
    config = json.loads(Path(given).read_text("utf-8")) if isinstance(given, str | Path) else given or {}
    if not isinstance(config, dict):
        raise TypeError(f"is a {type(config).__name__}")
    return {key.removeprefix("fsdp_"): value for key, value in config.items()}


def _carry_older(args: Any, config: dict[str, Any], newer: bool) -> None:
    """Write the two fields that older releases had beside ``fsdp_config`` into it."""
    if args.fsdp_min_num_params:
        text = "`fsdp_min_num_params` is deprecated: write it into `fsdp_config`."
        warnings.warn(text, FutureWarning, stacklevel=6)
        config["min_num_params"] = max(config.get("min_num_params") or 0, args.fsdp_min_num_params)
        if newer:
            config.setdefault("auto_wrap_policy", "SIZE_BASED_WRAP")
    name = args.fsdp_transformer_layer_cls_to_wrap
    if name:
        text = "`fsdp_transformer_layer_cls_to_wrap` is deprecated: write it into `fsdp_config`."
        warnings.warn(text, FutureWarning, stacklevel=6)
        listed = config.get("transformer_layer_cls_to_wrap") or []
        listed = [listed] if isinstance(listed, str) else list(listed)
        config["transformer_layer_cls_to_wrap"] = [*listed, *([] if name in listed else [name])]


def _carry_words(args: Any, newer: bool) -> None:
    words = words_of(args.fsdp)
    if not newer:
        args.fsdp = [FSDPOption.FULL_SHARD] if args.fsdp is True else [FSDPOption(word) for word in words]
        return
    config = args.fsdp_config
    for word in words:
        if word in SHARDINGS:
            by_name = str(config.get("version", 2)) == "1"
            config.setdefault("reshard_after_forward", word if by_name else word == "full_shard")
        elif word == "offload":
            config.setdefault("cpu_offload", True)
    if args.fsdp:
        args.fsdp = True
