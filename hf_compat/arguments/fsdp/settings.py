"""What ``fsdp``, ``fsdp_config`` and ``accelerate launch --use_fsdp`` ask for, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.fsdp.checks import contradictions, unknown_keys, unused_keys, word_problems
from hf_compat.arguments.fsdp.keys import (
    BY_VARIABLES,
    KEYS,
    OF_VERSION_1,
    SHARDINGS,
    defaults_of,
    shardings_of,
    words_of,
)
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.releases.versions import SINCE

__all__ = ["LOADING_VARIABLE", "USE_VARIABLE", "FsdpSettings", "announce_loading", "fsdp_problems", "read_fsdp"]

USE_VARIABLE = "ACCELERATE_USE_FSDP"
"""Set to ``true`` by ``accelerate launch --use_fsdp``; transformers' loading takes ``1`` for the same."""
LOADING_VARIABLE = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""With the one above, tells transformers' ``from_pretrained`` that process 0 alone is to read weights."""

Problems = Iterator[Problem]


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """How a model is sharded over the processes of a run."""

    version: Literal[1, 2] = 1
    """torch's ``FullyShardedDataParallel``, or its ``fully_shard``."""
    sharding: Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"] = "full_shard"
    """What is sharded; under version 2 one of the first two."""
    wrapping: Literal["transformer", "size", "none"] = "none"
    """Which modules are gathered by themselves: layers by their class, modules by their size, or only the model."""
    layer_classes: tuple[str, ...] = ()
    """Names of the layers' classes; none for the model's ``_no_split_modules``. For ``wrapping="transformer"``."""
    min_num_params: int = 0
    """Parameters that make a module worth gathering by itself. For ``wrapping="size"``."""
    cpu_offload: bool = False
    """Whether parameters, gradients and the optimizer's state stay on the host between uses."""
    state_dict_type: Literal["full", "sharded"] = "full"
    """What checkpoints hold: whole weights, or each process's part, as ``torch.distributed.checkpoint`` writes it."""
    cpu_ram_efficient_loading: bool = False
    """Whether process 0 alone reads a pretrained model's weights."""
    activation_checkpointing: bool = False
    """Whether the modules that are gathered by themselves compute their activations anew in the backward pass."""
    backward_prefetch: Literal["backward_pre", "backward_post"] | None = None
    """When the backward pass gathers the next module. Version 1 alone, as are all that follow."""
    forward_prefetch: bool = False
    """Whether the forward pass gathers the next module while it computes one."""
    limit_all_gathers: bool = True
    """Whether the host waits rather than gather far ahead."""
    use_orig_params: bool = True
    """Whether the optimizer is given the model's own parameters, or flat ones."""
    sync_module_states: bool = True
    """Whether all processes begin with the weights of process 0."""

    @property
    def reshards_after_forward(self) -> bool:
        """Whether gathered parameters are given up between forward and backward pass."""
        return self.sharding in ("full_shard", "hybrid_shard")


def read_fsdp(args: Any) -> FsdpSettings | None:
    """Return how ``args`` and the launcher's variables want the model sharded; None if they do not.

    Fields win over variables. A ``fsdp_config`` key that the followed release ignored is carried out all the same.

    Raises:
        ArgumentsError: If they contradict each other, or ask for what cannot be carried out.
    """
    settings, problems = _read(args)
    raise_all(problems)
    return settings


def fsdp_problems(args: Any) -> Problems:
    """Yield what is wrong with the fields and variables of FSDP."""
    yield from _read(args)[1]


def announce_loading(settings: FsdpSettings | None) -> None:
    """Tell transformers' ``from_pretrained`` whether process 0 alone is to read weights."""
    if settings is not None and settings.cpu_ram_efficient_loading:
        os.environ.setdefault(USE_VARIABLE, "1")  # "true" would make later arguments ask for FSDP, too
        os.environ[LOADING_VARIABLE] = "true"
    elif os.environ.get(LOADING_VARIABLE) == "true":
        os.environ[LOADING_VARIABLE] = "false"


def _read(args: Any) -> tuple[FsdpSettings | None, list[Problem]]:
    launched = os.environ.get(USE_VARIABLE, "").lower() == "true"
    given = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
    config = {key.removeprefix("fsdp_"): value for key, value in given.items()}
    if not (args.fsdp or launched):
        return None, list(unused_keys(config, launched=False))
    newer = resolve_semantics(args.semantics).release >= SINCE["makes_fsdp_a_switch"]
    words = words_of(args.fsdp)
    values, problems = _values(config, words, defaults_of(newer) if args.fsdp else {})
    values["sharding"], found = _sharding(words, config, values["version"])
    problems += [*found, *(unknown_keys(config) if args.fsdp else unused_keys(config, launched=True))]
    problems += [*word_problems(words, newer), *contradictions(args, config, values)]
    if problems:
        return None, problems
    if values["version"] == 2:
        values = {name: value for name, value in values.items() if name not in OF_VERSION_1}
    values["layer_classes"] = values["layer_classes"] if values["wrapping"] == "transformer" else ()
    values["min_num_params"] = values["min_num_params"] if values["wrapping"] == "size" else 0
    return FsdpSettings(**values), []


def _values(config: dict[str, Any], words: list[str], fixed: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the settings by their names, but what is sharded: what is ``fixed``, or the variables say; then fields."""
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    field: str
    shown: Any
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
    values = BY_VARIABLES | fixed | given
    values["cpu_offload"] = values["cpu_offload"] or "offload" in words
    if "auto_wrap" in words and "auto_wrap_policy" not in config:
        by_size = config.get("min_num_params") and "wrapping" not in fixed
        values["wrapping"] = "size" if by_size else "transformer"
    if values["state_dict_type"] is None:
        values["state_dict_type"] = "sharded" if values["version"] == 2 else "full"
    return values, problems


def _sharding(words: list[str], config: dict[str, Any], version: int) -> tuple[str, list[Problem]]:
    """Return what is sharded, as the config, a word or the launcher's variables say."""
    word = next((word for word in words if word in SHARDINGS), None)
    field: str
    shown: Any
    variable = "FSDP_RESHARD_AFTER_FORWARD" if version == 2 else "FSDP_SHARDING_STRATEGY"
    if config.get("reshard_after_forward") is not None:
        wish = config["reshard_after_forward"]
        field, shown = "fsdp_config", {"reshard_after_forward": wish}
    elif word is not None:
        field, shown, wish = "fsdp", word, word
    else:
        wish = os.environ.get(variable, "1")
        field, shown = variable, wish
    known = shardings_of(version, word=field == "fsdp")
    found = known.get(str(wish).lower())
    if found is None:
        text = f"version {version} of FSDP knows {', '.join(map(repr, known))}"
        also = "; set `fsdp_config={'version': 1}` for it" if version == 2 and wish in SHARDINGS else ""
        return "full_shard", [Problem(field, shown, f"{text}{also}.")]
    if field == "fsdp_config" and word not in (None, found):
        return found, [Problem("fsdp", word, f"contradicts `fsdp_config={shown}`; leave one of them out.")]
    return found, []
