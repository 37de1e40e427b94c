"""What contradicts itself in the settings of FSDP, and what they hold that cannot be carried out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.fsdp.keys import KEYS, SHARDINGS

__all__ = ["contradictions", "unknown_keys", "unused_keys", "word_problems"]

Problems = Iterator[Problem]

_TPU_KEYS = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings")
_KNOWN = (*(row.key for row in KEYS), "reshard_after_forward")
_RENAMED = {
    "offload_params": "cpu_offload",
    "sharding_strategy": "reshard_after_forward",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
}
"""Names that accelerate has for keys of ``fsdp_config``."""
_BESIDE_LAUNCHER = ("activation_checkpointing", "limit_all_gathers")
"""Keys that count beside ``accelerate launch --use_fsdp`` without the field ``fsdp``."""
_NEVER = ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "FSDP_IGNORED_MODULES")


def _config(config: dict[str, Any], key: str, text: str) -> Problem:
    return Problem("fsdp_config", {key: config.get(key)}, text)


def unused_keys(config: dict[str, Any], *, launched: bool) -> Problems:
    """Yield the keys that ask for something though ``fsdp`` is not set."""
    for key, value in config.items():
        if value and not (launched and key in _BESIDE_LAUNCHER):
            yield _config(config, key, "asks for nothing without `fsdp`; set it too, or drop this.")


def unknown_keys(config: dict[str, Any]) -> Problems:
    """Yield the keys that no version of FSDP has, and those for TPUs."""
    for key, value in config.items():
        if key in _TPU_KEYS:
            if value:
                text = "is for TPUs, which are not supported; drop it."
                yield Problem("fsdp_config", {key: value}, text, unsupported=True)
        elif key not in _KNOWN:
            newer = _RENAMED.get(key)
            text = f"write {newer!r} instead" if newer else f"is none of {', '.join(_KNOWN)}; drop it"
            yield _config(config, key, f"{text}.")


def word_problems(words: list[str], newer: bool) -> Problems:
    """Yield what is wrong with the words of ``fsdp`` by themselves."""
    known = [option.value for option in FSDPOption]
    for word in words:
        if word not in known:
            yield Problem("fsdp", word, f"is none of {', '.join(known)}; drop it.")
    shardings = [word for word in words if word in SHARDINGS]
    if len(set(shardings)) > 1:
        yield Problem("fsdp", " ".join(shardings), "exclude each other; leave one.")
    if words == ["offload"] and not newer:
        yield Problem("fsdp", "offload", "says not what is sharded; write 'full_shard offload'.")


def contradictions(args: Any, config: dict[str, Any], values: dict[str, Any]) -> Problems:
    """Yield what excludes itself.

    Args:
        args: The training arguments.
        config: ``fsdp_config``, its keys without prefix.
        values: The settings by their names, as far as they can be read.
    """
    yield from _wrapping(config, values)
    yield from _saving(args, values)
    if values["activation_checkpointing"] and (args.activation_checkpointing or args.gradient_checkpointing):
        text = "excludes `gradient_checkpointing=True`, which does the same; leave one of them out."
        yield Problem("fsdp_config", {"activation_checkpointing": True}, text)
    if values["version"] == 1 and values["cpu_ram_efficient_loading"] and not values["sync_module_states"]:
        text = "needs 'sync_module_states': True: the other processes would train random weights."
        yield Problem("fsdp_config", {"cpu_ram_efficient_loading": True}, text)
    for row in KEYS if values["version"] == 2 else ():
        if config.get(row.key) is not None and row.second is not None and values[row.setting] not in row.second:
            yield _config(config, row.key, "is for version 1 of FSDP alone; drop it, or set 'version': 1.")
    if args.deepspeed:
        yield Problem("deepspeed", args.deepspeed, "excludes FSDP; leave one of them out.")
    for variable in _NEVER:
        value = os.environ.get(variable, "")
        if value.lower() not in ("", "0", "false", "none"):
            yield Problem(variable, value, "is not supported; launch without it.", unsupported=True)


def _wrapping(config: dict[str, Any], values: dict[str, Any]) -> Problems:
    classes, size = config.get("transformer_layer_cls_to_wrap"), config.get("min_num_params")
    by_class = "write 'auto_wrap' into `fsdp`, or set 'auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'"
    if classes and size:
        yield _config(config, "min_num_params", "excludes `transformer_layer_cls_to_wrap`; leave one of them out.")
    elif size and values["wrapping"] != "size":
        text = "counts where layers are chosen by size; set 'auto_wrap_policy': 'SIZE_BASED_WRAP', or drop it."
        yield _config(config, "min_num_params", text)
    elif classes and values["wrapping"] != "transformer":
        text = f"counts where layers are chosen by class; {by_class}, or drop it."
        yield _config(config, "transformer_layer_cls_to_wrap", text)
    elif values["wrapping"] == "size" and not (size or values["min_num_params"]):
        text = "has to be positive where layers are chosen by size; set it."
        yield _config(config, "min_num_params", text)


def _saving(args: Any, values: dict[str, Any]) -> Problems:
    if args.save_only_model and values["state_dict_type"] == "sharded":
        text = "needs whole checkpoints: set `fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`, or drop it."
        yield Problem("save_only_model", True, text)
    if args.save_only_model and args.load_best_model_at_end:
        yield Problem("save_only_model", True, "excludes `load_best_model_at_end=True` under FSDP; leave one out.")
