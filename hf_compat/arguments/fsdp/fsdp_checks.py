"""Checks of the FSDP settings: unknown, contradictory and unsupported values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.fields.unknown import nearest_value
from hf_compat.arguments.fsdp.keys import KEYS, OTHER_NAMES, SHARDING_STRATEGIES

if TYPE_CHECKING:
    from hf_compat.arguments.fsdp.settings import FsdpSettings
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "contradictions",
    "device_limits",
    "keys_of_version_1",
    "node_limits",
    "option_problems",
    "unknown_keys",
    "unused_keys",
]

Problems = Iterator[Problem]

_TPU_KEYS = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings")
_KNOWN = (*(row.key for row in KEYS), "reshard_after_forward")
_PRECISIONS = {"fp32": "no", "no": "no", "bf16": "bf16", "fp16": "fp16"}
"""accelerate's ``mixed_precision_policy`` → the mixed precision of the training arguments."""
_PLUGINS_OWN = (
    *("activation_checkpointing_offload", "ignored_modules", "optim_state_dict_config", "param_init_fn"),
    "state_dict_config",
)
"""Further names of accelerate's plugin, which transformers ignores and the Trainer has no setting for."""
_VERSION_2 = ("fully_shard", "fsdp2")
"""What torch and people call FSDP 2, which is no option but a version."""
_WITH_LAUNCHER = ("activation_checkpointing", "limit_all_gathers")
"""Keys that have an effect under ``accelerate launch --use_fsdp`` without the field ``fsdp``."""
_UNSUPPORTED_VARIABLES = ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "FSDP_IGNORED_MODULES")


def _config(config: dict[str, Any], key: str, text: str) -> Problem:
    return Problem("fsdp_config", {key: config.get(key)}, text)


def unused_keys(config: dict[str, Any], *, launched: bool) -> Problems:
    """Yield the keys that are set although ``fsdp`` is not."""
    for key, value in config.items():
        if value and not (launched and key in _WITH_LAUNCHER):
            yield _config(config, key, "has no effect without `fsdp`; set `fsdp` too, or remove it.")


def unknown_keys(config: dict[str, Any]) -> Problems:
    """Yield unknown keys, those for TPUs, those of accelerate alone, and those that are there by two names."""
    for key, value in config.items():
        if key in _TPU_KEYS:
            if value:
                text = "is for TPUs, which are not supported; remove it."
                yield Problem("fsdp_config", {key: value}, text, unsupported=True)
        elif key in _PLUGINS_OWN:
            if value and str(value).lower() != "false":
                text = "is for accelerate's own plugin, and transformers ignores it; remove it."
                yield Problem("fsdp_config", {key: value}, text, unsupported=True)
        elif key in OTHER_NAMES:
            if str(config[OTHER_NAMES[key]]).lower() != str(value).lower():
                yield _config(
                    config, key, f"contradicts {OTHER_NAMES[key]!r}, which is the same key; remove one of them."
                )
        elif key not in (*_KNOWN, "mixed_precision_policy", "sharding_strategy"):
            yield _config(config, key, f"unknown key, not one of {', '.join(_KNOWN)}; remove it.")


def option_problems(options: list[str], is_switch: bool) -> Problems:
    """Yield the problems of the options in ``fsdp``.

    Args:
        options: The options.
        is_switch: Whether ``fsdp`` is a bool in the release, and names no sharding strategy.
    """
    known = [member.value for member in FSDPOption]
    for option in options:
        if option not in known:
            text = f"Unknown `fsdp` option, not a valid FSDPOption: {', '.join(known)}"
            yield Problem("fsdp", option, f"{text}; {_other_option(option, known)}")
    strategies = [option for option in options if option in SHARDING_STRATEGIES]
    if len(set(strategies)) > 1:
        text = f"`{strategies[0]}` is not compatible with `{strategies[-1]}`: each is a sharding strategy; keep one."
        yield Problem("fsdp", " ".join(strategies), text)
    if options == ["offload"] and not is_switch:
        yield Problem("fsdp", "offload", "can't work on its own; use 'full_shard offload'.")


def _other_option(option: str, known: list[str]) -> str:
    """Return what to set instead of an unknown ``option``."""
    if option.lower() in _VERSION_2:
        return "for FSDP 2 set `fsdp=True` and `fsdp_config={'version': 2}`."
    return nearest_value(option, known).strip() or "use one of them, or remove it."


def contradictions(
    args: TrainingArguments, config: dict[str, Any], values: dict[str, Any], *, is_switch: bool
) -> Problems:
    """Yield settings that contradict each other.

    Args:
        args: The training arguments.
        config: ``fsdp_config``, its keys without prefix.
        values: The settings by name, as far as they are valid.
        is_switch: Whether ``fsdp`` is a bool in the release.
    """
    yield from _wrapping(config, values, is_switch=is_switch)
    yield from _saving(args, values)
    if values["activation_checkpointing"] and (args.activation_checkpointing or args.gradient_checkpointing):
        text = "and `activation_checkpointing=True` of the arguments can't both be set to True; remove the latter."
        yield Problem("fsdp_config", {"activation_checkpointing": True}, text)
    if values["version"] == 1 and values["cpu_ram_efficient_loading"] and not values["sync_module_states"]:
        text = "`sync_module_states` must be True too, or the other ranks would train random weights; set it."
        yield Problem("fsdp_config", {"cpu_ram_efficient_loading": True}, text)
    policy = config.get("mixed_precision_policy")
    wanted = "bf16" if args.bf16 else "fp16" if args.fp16 else "no"
    if policy is not None and (not isinstance(policy, str) or _PRECISIONS.get(policy.lower()) != wanted):
        text = "is not the precision of the training arguments; remove it, and set `bf16` or `fp16`."
        yield _config(config, "mixed_precision_policy", text)
    if args.deepspeed:
        yield Problem("deepspeed", args.deepspeed, "cannot be combined with `fsdp`; remove one of them.")
    for variable in _UNSUPPORTED_VARIABLES:
        value = os.environ.get(variable, "")
        if value.lower() not in ("", "0", "false", "none"):
            yield Problem(variable, value, "is not supported; unset it.", unsupported=True)


def keys_of_version_1(config: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Return the keys of FSDP version 1 that version 2 does not have, and that have no effect on numbers.

    Args:
        config: ``fsdp_config``, by the Trainer's names.
        values: The settings by name.
    """
    return [
        row.key
        for row in KEYS
        if values["version"] == 2
        and row.version_2_values is not None
        and config.get(row.key) is not None
        and values[row.setting] not in row.version_2_values
    ]


def _wrapping(config: dict[str, Any], values: dict[str, Any], *, is_switch: bool) -> Problems:
    classes, size = config.get("transformer_layer_cls_to_wrap"), config.get("min_num_params")
    by_class = "add 'auto_wrap' to `fsdp`, or set 'auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'"
    if classes and size and not is_switch:
        text = "`min_num_params` and `transformer_layer_cls_to_wrap` are mutually exclusive; remove one of them."
        yield _config(config, "min_num_params", text)
    elif classes and values["wrapping"] != "transformer":
        text = f"needs wrapping by class; {by_class}, or remove it."
        yield _config(config, "transformer_layer_cls_to_wrap", text)


def _saving(args: TrainingArguments, values: dict[str, Any]) -> Problems:
    if args.save_only_model and values["state_dict_type"] == "sharded":
        text = (
            "is not compatible with FSDP state dict type 'SHARDED_STATE_DICT'; set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`, or remove it."
        )
        yield Problem("save_only_model", True, text)
    if args.save_only_model and args.load_best_model_at_end:
        yield Problem(
            "save_only_model",
            True,
            "FSDP can't be used with `save_only_model` along with `load_best_model_at_end`; remove one of them.",
        )


def device_limits(args: TrainingArguments, settings: FsdpSettings | None) -> Iterator[str]:
    """Yield a message for each setting that FSDP version 1 does not support on the run's device, or at all.

    Args:
        args: The training arguments.
        settings: How FSDP shards the model, by the arguments or by a keyword; None without FSDP.
    """
    if settings is None or settings.version == 2:
        return
    on_cpu = args.device.type == "cpu"
    if on_cpu and settings.cpu_offload:
        yield "`fsdp`: CPU offloading needs a GPU. Remove 'offload' and `cpu_offload`."
    if on_cpu and args.mixed_precision == "fp16":
        yield "`fp16=True`: FSDP's gradient scaler needs a GPU. Set `bf16=True`."
    if settings.sharding == "no_shard" and settings.state_dict_type == "sharded":
        yield "`fsdp`: with 'no_shard' there is no sharded state dict. Set 'state_dict_type': 'FULL_STATE_DICT'."


def node_limits(args: TrainingArguments) -> Iterator[str]:
    """Yield a message if each of several nodes is to write files, which it does not have under FSDP."""
    if args.save_on_each_node and (nodes := args.launch.num_nodes) > 1:
        yield (
            f"`save_on_each_node=True` with {nodes} nodes is not supported with FSDP: only rank 0 has the full state "
            "dicts. Set it to False."
        )
