"""The FSDP settings: one row per key of ``fsdp_config``, with the variable of ``accelerate launch``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ACCELERATE_DEFAULTS",
    "KEYS",
    "OTHER_NAMES",
    "SHARDING_STRATEGIES",
    "VERSION_1_ONLY",
    "Key",
    "field_defaults",
    "fsdp_options",
    "own_names",
    "sharding_values",
]

SHARDING_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""The sharding strategies, in the order of accelerate's numbers, from 1."""

_ON = ("y", "yes", "t", "true", "on", "1")
_OFF = ("n", "no", "f", "false", "off", "0")


def _switch(value: object) -> bool:
    text = str(value).lower()
    if text not in (*_ON, *_OFF):
        raise ValueError(f"invalid truth value {value}; use True or False")
    return text in _ON


def _choice(choices: dict[str, Any]) -> Callable[[object], object]:
    def read(value: object) -> object:
        text = str(value).upper()
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(map(repr, dict.fromkeys(choices)))}")
        return choices[text]

    return read


def _count(value: object) -> int:
    if isinstance(value, bool) or not str(value).isdigit():
        raise ValueError("must be an integer, 0 or more")
    return int(str(value))


def _names(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple | set) or not all(isinstance(name, str) for name in listed):
        raise ValueError("must be a class name or a list of class names")
    return tuple(name.strip() for name in listed if name.strip())


@dataclass(frozen=True, slots=True)
class Key:
    """One FSDP setting."""

    key: str
    """Its key in ``fsdp_config``."""
    setting: str
    """Its field in ``FsdpSettings``."""
    read: Callable[[object], object]
    """Converts the value of the user or the launcher; raises ``ValueError`` if it is invalid."""
    variable: str = ""
    """The variable that ``accelerate launch`` sets, if any."""
    version_2_values: tuple[Any, ...] | None = None
    """The values that say what FSDP version 2 does anyway, if it does not have the setting; None if it does."""


_WRAPPINGS = {"TRANSFORMER_BASED_WRAP": "transformer", "SIZE_BASED_WRAP": "size", "NO_WRAP": "none"}
_PREFETCHES = {"NO_PREFETCH": None, "NONE": None, "BACKWARD_PRE": "backward_pre", "BACKWARD_POST": "backward_post"}
_PREFETCHES |= {"1": "backward_pre", "2": "backward_post"}
_STATES = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded", "1": "full", "3": "sharded"}

KEYS: tuple[Key, ...] = (
    Key("version", "version", _choice({"1": 1, "2": 2}), "FSDP_VERSION"),
    Key("auto_wrap_policy", "wrapping", _choice(_WRAPPINGS), "FSDP_AUTO_WRAP_POLICY"),
    Key("transformer_layer_cls_to_wrap", "layer_classes", _names, "FSDP_TRANSFORMER_CLS_TO_WRAP"),
    Key("min_num_params", "min_num_params", _count, "FSDP_MIN_NUM_PARAMS"),
    Key("cpu_offload", "cpu_offload", _switch, "FSDP_OFFLOAD_PARAMS"),
    Key("state_dict_type", "state_dict_type", _choice(_STATES), "FSDP_STATE_DICT_TYPE"),
    Key("cpu_ram_efficient_loading", "cpu_ram_efficient_loading", _switch, "FSDP_CPU_RAM_EFFICIENT_LOADING"),
    Key("activation_checkpointing", "activation_checkpointing", _switch, "FSDP_ACTIVATION_CHECKPOINTING"),
    Key(
        "backward_prefetch",
        "backward_prefetch",
        _choice(_PREFETCHES),
        "FSDP_BACKWARD_PREFETCH",
        version_2_values=(None, "backward_pre"),
    ),
    Key("forward_prefetch", "forward_prefetch", _switch, "FSDP_FORWARD_PREFETCH", version_2_values=(False,)),
    Key("limit_all_gathers", "limit_all_gathers", _switch, version_2_values=(True,)),
    Key("use_orig_params", "use_orig_params", _switch, "FSDP_USE_ORIG_PARAMS", version_2_values=(True,)),
    Key("sync_module_states", "sync_module_states", _switch, "FSDP_SYNC_MODULE_STATES", version_2_values=(True, False)),
)
"""Every setting except the sharding strategy, which options of ``fsdp`` and two variables also set."""

OTHER_NAMES = {
    "backward_prefetch_policy": "backward_prefetch",
    "offload_params": "cpu_offload",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
}
"""accelerate's name of a key, in its plugin and its configuration files, which transformers ignores → the key."""

VERSION_1_ONLY = tuple(row.setting for row in KEYS if row.version_2_values is not None)
"""Settings that FSDP version 2 does not have."""

ACCELERATE_DEFAULTS: dict[str, Any] = {
    "version": 1,
    "wrapping": "none",
    "layer_classes": (),
    "min_num_params": 0,
    "cpu_offload": False,
    "state_dict_type": None,
    "cpu_ram_efficient_loading": False,
    "activation_checkpointing": False,
    "backward_prefetch": None,
    "forward_prefetch": False,
    "limit_all_gathers": True,
    "use_orig_params": False,
    "sync_module_states": False,
}
"""Setting to accelerate's default, if neither a field nor a variable sets it."""

_FIELD_DEFAULTS = {
    "backward_prefetch": None,
    "forward_prefetch": False,
    "use_orig_params": True,
    "sync_module_states": True,
    "cpu_ram_efficient_loading": False,
}
"""Setting to its default if the field ``fsdp`` is set; it overrides the variables."""


def field_defaults(is_switch: bool) -> dict[str, Any]:
    """Return the defaults if the field ``fsdp`` is set, of releases in which it is a bool or of earlier ones."""
    return _FIELD_DEFAULTS | ({"version": 2, "wrapping": "transformer", "state_dict_type": "full"} if is_switch else {})


def sharding_values(version: int, *, is_option: bool) -> dict[str, str]:
    """Return valid value → name of the sharding strategy.

    Args:
        version: FSDP version 1 has names and accelerate's numbers for them; version 2 a bool.
        is_option: Whether the value is an option of ``fsdp`` or accelerate's, a name or number in version 2 too.
    """
    if version == 1 or is_option:
        names = SHARDING_STRATEGIES if version == 1 else SHARDING_STRATEGIES[:2]
        return {name: name for name in names} | {str(n): name for n, name in enumerate(names, 1)}
    return dict.fromkeys(_ON, "full_shard") | dict.fromkeys(_OFF, "shard_grad_op")


def fsdp_options(fsdp: object) -> list[str]:
    """Return the options in the field ``fsdp``; none if it is a bool."""
    if isinstance(fsdp, str):
        return fsdp.split()
    return [str(getattr(option, "value", option)) for option in fsdp] if isinstance(fsdp, list | tuple) else []


def own_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``fsdp_config`` with its keys without prefix, those of accelerate by the Trainer's names.

    A key that is there by both names keeps both.
    """
    plain = {key.removeprefix("fsdp_"): value for key, value in config.items()}
    return {key if OTHER_NAMES.get(key, key) in plain else OTHER_NAMES[key]: value for key, value in plain.items()}
