"""``TrainingArguments.fsdp`` and ``fsdp_config``, or ``accelerate launch --use_fsdp``: settings, read without torch."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.problems import Problem, nearest_value, raise_all
from hf_compat.arguments.releases import SINCE, Semantics, resolve_semantics
from hf_compat.errors import warn_user

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

logger = logging.getLogger(__name__)


# The FSDP settings: one row per key of `fsdp_config`, with the variable of `accelerate launch`.


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


# Checks of the FSDP settings: unknown, contradictory and unsupported values.


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


# `FsdpSettings`: the settings of `fsdp`, `fsdp_config` and `accelerate launch --use_fsdp`.


USE_VARIABLE = "ACCELERATE_USE_FSDP"
"""Set to ``true`` by ``accelerate launch --use_fsdp``; transformers also accepts ``1``."""
LOADING_VARIABLE = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""With the variable above, lets transformers' ``from_pretrained`` read weights on rank 0 only."""


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """Settings of a model sharded over all ranks."""

    version: Literal[1, 2] = 1
    """1 for torch's ``FullyShardedDataParallel``, 2 for ``fully_shard``."""
    sharding: Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"] = "full_shard"
    """Sharding strategy; with version 2 one of the first two."""
    wrapping: Literal["transformer", "size", "none"] = "none"
    """The FSDP units besides the model: layers by their class, modules by their size, or none."""
    layer_classes: tuple[str, ...] = ()
    """Class names of the FSDP units; empty for the model's ``_no_split_modules``. For ``wrapping="transformer"``."""
    min_num_params: int = 0
    """Minimum number of parameters of an FSDP unit; 0 for none with version 1, any with 2. For ``wrapping="size"``."""
    cpu_offload: bool = False
    """Whether parameters, gradients and optimizer state are offloaded to the CPU."""
    state_dict_type: Literal["full", "sharded"] = "full"
    """Whether checkpoints hold a full state dict, or a sharded one of ``torch.distributed.checkpoint``."""
    cpu_ram_efficient_loading: bool = False
    """Whether only rank 0 reads a pretrained model's weights."""
    activation_checkpointing: bool = False
    """Whether FSDP units recompute their activations in the backward pass."""
    backward_prefetch: Literal["backward_pre", "backward_post"] | None = None
    """When the backward pass gathers the next FSDP unit. Version 1 only, like the fields below."""
    forward_prefetch: bool = False
    """Whether the forward pass gathers the next FSDP unit while it computes one."""
    limit_all_gathers: bool = True
    """Whether the CPU waits instead of gathering far ahead."""
    use_orig_params: bool = True
    """Whether the optimizer gets the model's parameters or flat parameters."""
    sync_module_states: bool = True
    """Whether rank 0 broadcasts its weights to all ranks before training."""

    @property
    def reshards_after_forward(self) -> bool:
        """Whether parameters are resharded between forward and backward pass."""
        return self.sharding in ("full_shard", "hybrid_shard")


def read_fsdp(args: TrainingArguments) -> FsdpSettings | None:
    """Return the FSDP settings of ``args`` and the launcher's variables; None without FSDP.

    Fields take precedence. Keys of ``fsdp_config`` that the reproduced release ignores have their effect too.

    Raises:
        ArgumentsError: If they are invalid, contradict each other or are not supported.
    """
    settings, problems = _read(args)
    raise_all(problems)
    return settings


def requests_fsdp(args: TrainingArguments) -> bool:
    """Return whether ``args`` or the launcher's variables request FSDP, of any version and with any settings."""
    return bool(args.fsdp or _is_launched())


def _is_launched() -> bool:
    return os.environ.get(USE_VARIABLE, "").lower() == "true"


def fsdp_problems(args: TrainingArguments) -> Problems:
    """Yield the problems of the fields and variables of FSDP."""
    yield from _read(args)[1]


def ignored_keys(args: TrainingArguments) -> dict[tuple[str, str], list[str]]:
    """Return the keys of ``fsdp_config`` without effect, by the reason and by the setting with which they have one."""
    config, is_switch = own_names(args.fsdp_config), _is_switch(args)
    values, _ = _values(config, fsdp_options(args.fsdp), field_defaults(is_switch) if args.fsdp else {})
    by_size = ["min_num_params"] if config.get("min_num_params") and values["wrapping"] != "size" else []
    return {
        ("FSDP version 2", "'version': 1"): keys_of_version_1(config, values),
        ("layers that are not chosen by size", "'auto_wrap_policy': 'SIZE_BASED_WRAP'"): by_size,
    }


def prepare_loading(args: TrainingArguments) -> None:
    """Let transformers load pretrained weights on rank 0 alone, if requested; that needs the process group."""
    settings = read_fsdp(args)
    set_loading_variables(settings)
    if settings is not None and settings.cpu_ram_efficient_loading:
        _ = args.device


def set_loading_variables(settings: FsdpSettings | None) -> None:
    """Set the variables that let transformers' ``from_pretrained`` read weights on rank 0 only, or unset them."""
    if settings is not None and settings.cpu_ram_efficient_loading:
        os.environ.setdefault(USE_VARIABLE, "1")  # "true" would enable FSDP in later arguments too
        os.environ[LOADING_VARIABLE] = "true"
    elif os.environ.get(LOADING_VARIABLE) == "true":
        os.environ[LOADING_VARIABLE] = "false"


def _read(args: TrainingArguments) -> tuple[FsdpSettings | None, list[Problem]]:
    config = own_names(args.fsdp_config if isinstance(args.fsdp_config, dict) else {})
    if not requests_fsdp(args):
        return None, list(unused_keys(config, launched=False))
    is_switch = _is_switch(args)
    options = fsdp_options(args.fsdp)
    values, problems = _values(config, options, field_defaults(is_switch) if args.fsdp else {})
    values["sharding"], found = _sharding(options, config, values["version"])
    problems += [*found, *(unknown_keys(config) if args.fsdp else unused_keys(config, launched=True))]
    problems += [*option_problems(options, is_switch), *contradictions(args, config, values, is_switch=is_switch)]
    if problems:
        return None, problems
    if values["version"] == 2:
        values = {name: value for name, value in values.items() if name not in VERSION_1_ONLY}
    values["layer_classes"] = values["layer_classes"] if values["wrapping"] == "transformer" else ()
    values["min_num_params"] = values["min_num_params"] if values["wrapping"] == "size" else 0
    return FsdpSettings(**values), []


def _is_switch(args: TrainingArguments) -> bool:
    """Return whether ``fsdp`` is a bool in the release."""
    return resolve_semantics(args.semantics).release >= SINCE["makes_fsdp_a_switch"]


def _values(config: dict[str, Any], options: list[str], fixed: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the settings by name, except the sharding strategy: fields, then ``fixed`` defaults, then variables."""
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    field: str
    shown: object
    for row in KEYS:
        if config.get(row.key) is not None and (config[row.key] or row.key != "min_num_params"):
            field, shown, value = "fsdp_config", {row.key: config[row.key]}, config[row.key]
        elif row.setting not in fixed and row.variable in os.environ:
            field, shown, value = row.variable, os.environ[row.variable], os.environ[row.variable]
        else:
            continue
        try:
            given[row.setting] = row.read(value)
        except ValueError as error:
            problems.append(Problem(field, shown, f"{error}."))
    values = ACCELERATE_DEFAULTS | fixed | given
    values["cpu_offload"] = values["cpu_offload"] or "offload" in options
    if "auto_wrap" in options and "auto_wrap_policy" not in config:
        by_size = config.get("min_num_params") and "wrapping" not in fixed
        values["wrapping"] = "size" if by_size else "transformer"
    if values["state_dict_type"] is None:
        values["state_dict_type"] = "sharded" if values["version"] == 2 else "full"
    return values, problems


def _sharding(options: list[str], config: dict[str, Any], version: int) -> tuple[str, list[Problem]]:
    """Return the sharding strategy of the config, an option of ``fsdp`` or the launcher's variables."""
    option = next((option for option in options if option in SHARDING_STRATEGIES), None)
    field: str
    shown: object
    variable = "FSDP_RESHARD_AFTER_FORWARD" if version == 2 else "FSDP_SHARDING_STRATEGY"
    key = next((key for key in ("reshard_after_forward", "sharding_strategy") if config.get(key) is not None), None)
    if key is not None:
        field, shown, value = "fsdp_config", {key: config[key]}, config[key]
    elif option is not None:
        field, shown, value = "fsdp", option, option
    else:
        value = os.environ.get(variable, "1")
        field, shown = variable, value
    known = sharding_values(version, is_option=field == "fsdp" or key == "sharding_strategy")
    found = known.get(str(value).lower())
    if found is None:
        text, remedy = f"FSDP version {version} supports {', '.join(map(repr, known))}", "use one of them"
        if version == 2 and str(value).lower() in SHARDING_STRATEGIES:
            text, remedy = f"is only available with FSDP1. {text}", "set `fsdp_config={'version': 1}`"
        elif version == 2:
            text = f"invalid truth value {value}: {text}"
        return "full_shard", [Problem(field, shown, f"{text}; {remedy}.")]
    if key == "sharding_strategy" and option not in (None, found):
        return found, [Problem("fsdp", option, f"contradicts `fsdp_config={shown}`; remove one of them.")]
    other = config.get("sharding_strategy")
    if other is not None and sharding_values(version, is_option=True).get(str(other).lower()) != found:
        text = f"contradicts 'reshard_after_forward': {value!r}, which is the same key; remove one of them."
        return found, [Problem("fsdp_config", {"sharding_strategy": other}, text)]
    return found, []


# Resolves the fields `fsdp` and `fsdp_config` into the form of the reproduced release.


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


def _loaded(fsdp_config: object) -> dict[str, Any]:
    """Return a copy of ``fsdp_config`` with its keys without prefix.

    Raises:
        OSError: If the file cannot be read.
        TypeError: If it is not a mapping.
        ValueError: If the file is not JSON.
    """
    config = json.loads(Path(fsdp_config).read_text("utf-8")) if isinstance(fsdp_config, str | Path) else fsdp_config
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
        warn_user(text, FutureWarning)
        config["min_num_params"] = max(config.get("min_num_params") or 0, _least_parameters(args))
        if is_switch:
            config.setdefault("auto_wrap_policy", "SIZE_BASED_WRAP")
    name = args.fsdp_transformer_layer_cls_to_wrap
    if name:
        text = "`fsdp_transformer_layer_cls_to_wrap` is deprecated: set it in `fsdp_config`."
        warn_user(text, FutureWarning)
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
