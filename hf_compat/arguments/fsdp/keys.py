"""The settings of FSDP: one row per key of ``fsdp_config``, with the variable of ``accelerate launch`` for the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BY_VARIABLES",
    "KEYS",
    "OF_VERSION_1",
    "SHARDINGS",
    "Key",
    "defaults_of",
    "shardings_of",
    "words_of",
]

SHARDINGS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""What may be sharded, in the order of the numbers that accelerate gives them, from 1."""

_ON = ("y", "yes", "t", "true", "on", "1")
_OFF = ("n", "no", "f", "false", "off", "0")


def _switch(value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_ON, *_OFF):
        raise ValueError("has to be True or False")
    return text in _ON


def _choice(choices: dict[str, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        text = str(value).upper()
        if text not in choices:
            raise ValueError(f"choose one of {', '.join(map(repr, dict.fromkeys(choices)))}")
        return choices[text]

    return read


def _count(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdigit():
        raise ValueError("has to be a whole number, 0 or more")
    return int(value)


def _names(value: Any) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple | set) or not all(isinstance(name, str) for name in listed):
        raise ValueError("has to be the name of a class, or a list of them")
    return tuple(name.strip() for name in listed if name.strip())


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    key: str
    """In ``fsdp_config``."""
    setting: str
    """The field of ``FsdpSettings``."""
    read: Callable[[Any], Any]
    """From what the user or the launcher wrote; a ``ValueError`` says what it has to be."""
    variable: str = ""
    """What ``accelerate launch`` sets, if it does."""
    second: tuple[Any, ...] | None = None
    """What version 2 of FSDP does by itself, so that only another value is refused there; None: it has the setting."""


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
        second=(None, "backward_pre"),
    ),
    Key("forward_prefetch", "forward_prefetch", _switch, "FSDP_FORWARD_PREFETCH", second=(False,)),
    Key("limit_all_gathers", "limit_all_gathers", _switch, second=(True,)),
    Key("use_orig_params", "use_orig_params", _switch, "FSDP_USE_ORIG_PARAMS", second=(True,)),
    Key("sync_module_states", "sync_module_states", _switch, "FSDP_SYNC_MODULE_STATES", second=(True, False)),
)
"""Every setting but what is sharded, which words and two variables say, too."""

OF_VERSION_1 = tuple(row.setting for row in KEYS if row.second is not None)
"""Settings that version 2 does not have."""

BY_VARIABLES: dict[str, Any] = {
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
"""Setting to what accelerate takes where neither a field nor a variable says anything."""

_WITH_FIELD = {
    "backward_prefetch": None,
    "forward_prefetch": False,
    "use_orig_params": True,
    "sync_module_states": True,
    "cpu_ram_efficient_loading": False,
}
"""Setting to what the field ``fsdp`` makes of it, whatever the variables say."""


def defaults_of(newer: bool) -> dict[str, Any]:
    """Return what the field ``fsdp`` sets by itself: that of the releases in which it is a switch, or before."""
    return _WITH_FIELD | ({"version": 2, "wrapping": "transformer", "state_dict_type": "full"} if newer else {})


def shardings_of(version: int, *, word: bool) -> dict[str, str]:
    """Return what may be written for what is sharded, to its name.

    Args:
        version: Version 1 has names and accelerate's numbers for them; version 2 a switch.
        word: Whether it is a word of the field ``fsdp``, which version 2 knows, too.
    """
    if version == 1:
        return {name: name for name in SHARDINGS} | {str(n): name for n, name in enumerate(SHARDINGS, 1)}
    if word:
        return {name: name for name in SHARDINGS[:2]}
    return dict.fromkeys(_ON, "full_shard") | dict.fromkeys(_OFF, "shard_grad_op")


def words_of(fsdp: Any) -> list[str]:
    """Return the words of the field ``fsdp``; none if it is a switch."""
    if isinstance(fsdp, str):
        return fsdp.split()
    return [str(getattr(word, "value", word)) for word in fsdp] if isinstance(fsdp, list | tuple) else []
