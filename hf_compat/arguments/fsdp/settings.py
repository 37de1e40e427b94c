"""``FsdpSettings``: the settings of ``fsdp``, ``fsdp_config`` and ``accelerate launch --use_fsdp``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.fsdp.fsdp_checks import (
    contradictions,
    keys_of_version_1,
    option_problems,
    unknown_keys,
    unused_keys,
)
from hf_compat.arguments.fsdp.keys import (
    ACCELERATE_DEFAULTS,
    KEYS,
    SHARDING_STRATEGIES,
    VERSION_1_ONLY,
    field_defaults,
    fsdp_options,
    own_names,
    sharding_values,
)
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.releases.versions import SINCE

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "LOADING_VARIABLE",
    "USE_VARIABLE",
    "FsdpSettings",
    "fsdp_problems",
    "ignored_keys",
    "read_fsdp",
    "requests_fsdp",
    "set_loading_variables",
]

USE_VARIABLE = "ACCELERATE_USE_FSDP"
"""Set to ``true`` by ``accelerate launch --use_fsdp``; transformers also accepts ``1``."""
LOADING_VARIABLE = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""With the variable above, lets transformers' ``from_pretrained`` read weights on rank 0 only."""

Problems = Iterator[Problem]


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
