"""The parts of ``parallelism_config``, or of the launcher's variables, by which ranks share sequences: sp and cp."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hf_compat.arguments.problems import Problem

# The handlers and backends of `parallelism_config`: what they may say, whichever sizes there are.


@dataclass(frozen=True, slots=True)
class _Handler:
    """One handler of accelerate's ``ParallelismConfig``."""

    size: str
    """The size that it is for."""
    class_name: str
    """accelerate's class of it."""
    keywords: tuple[str, ...]
    """The keywords of that class."""


HANDLERS = {
    "tp_handler": _Handler("tp_size", "TorchTensorParallelConfig", ("enable_async_tp",)),
    "cp_handler": _Handler("cp_size", "TorchContextParallelConfig", ("cp_comm_strategy",)),
    "sp_handler": _Handler(
        "sp_size",
        "DeepSpeedSequenceParallelConfig",
        ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
    ),
}
"""Each handler by its keyword of ``ParallelismConfig``."""
BACKENDS = {"cp_backend": "torch", "sp_backend": "deepspeed"}
"""Keyword of ``ParallelismConfig`` → the one value that accelerate takes."""


def handler_problems(config: object, *, launched: bool) -> Iterator[Problem]:
    """Yield the problems of handlers and backends.

    Args:
        config: accelerate's ``ParallelismConfig`` or a dict of its keywords; None without one.
        launched: Whether the launcher's variables count where ``config`` says nothing.
    """
    for name, handler in HANDLERS.items():
        value = config_value(config, name)
        if value is not None:
            yield from _problems_of(name, handler, value)
    for name, backend in BACKENDS.items():
        value = config_value(config, name) or (launched_value(name) if launched else None)
        if value not in (None, backend):
            yield config_problem(name, value, f"must be {backend!r}.")


def unused_handlers(config: object, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return each handler of ``config`` whose size is 1, so that it has no effect, with the keyword of that size."""
    named = {name: handler.size for name, handler in HANDLERS.items() if config_value(config, name) is not None}
    return {name: size for name, size in named.items() if sizes[size] == 1}


def _problems_of(name: str, handler: _Handler, value: object) -> Iterator[Problem]:
    known, kind = ", ".join(handler.keywords), handler.class_name
    if isinstance(value, Mapping):
        for key in sorted(set(value) - set(handler.keywords), key=str):
            yield config_problem(name, {key: value[key]}, f"{key!r} is not a keyword of `{kind}`; use {known}.")
    elif not all(hasattr(value, key) for key in handler.keywords):
        yield config_problem(name, value, f"pass accelerate's `{kind}` or a dict of its keywords: {known}.")
        return
    if config_value(value, "enable_async_tp"):
        text = "asynchronous tensor parallelism is not supported; accelerate ignores it. Remove it."
        yield config_problem("tp_handler", {"enable_async_tp": True}, text, unsupported=True)


def config_value(config: object, name: str) -> Any:
    """Return a value of ``config``, accelerate's ``ParallelismConfig`` or a dict of its keywords; None if not set."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def launched_value(name: str) -> str | None:
    """Return the value that ``accelerate launch`` has set for a keyword; None without one."""
    return os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}")


def handler_value(config: object, handler: str, name: str) -> Any:
    """Return a value of a handler of ``config``, an object or a dict; where it is not set, the launcher's."""
    value = config_value(config_value(config, handler), name)
    return launched_value(name) if value is None else value


def config_problem(key: str, value: object, text: str, *, unsupported: bool = False) -> Problem:
    """Return the problem of a keyword of ``parallelism_config``."""
    return Problem("parallelism_config", {key: value}, text, unsupported=unsupported)


_DEFAULT_ATTENTION = "sdpa"
_ATTENTIONS = ("sdpa", "flash_attention_2", "flash_attention_3")
"""Attention implementations that can be shared; others are flash-attention kernels of the Hub."""
_EXCLUDED = ("tp_size", "cp_size")
"""Sizes that have to be 1 beside ``sp_size``."""

Rotation = Literal["allgather", "alltoall"]
_ROTATIONS = ("allgather", "alltoall")


@dataclass(frozen=True, slots=True)
class SequenceParallelism:
    """Sequences shared by consecutive ranks, each of which has a chunk of every sequence and a share of the heads."""

    size: int
    """Sequence-parallel size: the ranks that share a sequence."""
    data: int
    """Data-parallel size: the groups of such ranks, which train on different batches."""
    attention: str
    """The attention implementation, as in the model's config."""
    length: int | None
    """Tokens of every sequence; None if batches differ."""

    @property
    def world_size(self) -> int:
        """The world size that the sizes need."""
        return self.size * self.data

    def check_world_size(self, world_size: int) -> str | None:
        """Return what is wrong about a run of ``world_size`` processes; None if that is the product of the sizes."""
        if world_size == self.world_size:
            return None
        return (
            f"`sp_size={self.size}` times `dp_replicate_size` x `dp_shard_size` = {self.data} of `parallelism_config` "
            f"is {self.world_size}, but the world size is {world_size}. Start {self.world_size} processes, or set "
            f"`dp_shard_size` so that the product is {world_size}."
        )


def sequence_parallelism(config: object, sizes: Mapping[str, int]) -> SequenceParallelism | None:
    """Return the sequence parallelism that a configuration requests; None without it.

    Args:
        config: accelerate's ``ParallelismConfig`` or a dict of its keywords; None for the launcher's variables alone.
        sizes: Every size by its keyword.
    """
    if sizes["sp_size"] == 1:
        return None
    return SequenceParallelism(
        size=sizes["sp_size"],
        data=sizes["dp_replicate_size"] * sizes["dp_shard_size"],
        attention=handler_value(config, "sp_handler", "sp_attn_implementation") or _DEFAULT_ATTENTION,
        length=None if _is_variable(config) else int(handler_value(config, "sp_handler", "sp_seq_length")),
    )


def sequence_parallel_problems(
    config: object, sizes: Mapping[str, int], *, has_deepspeed: bool, has_fsdp: bool, label_smoothing_factor: float
) -> Iterator[Problem]:
    """Yield the problems of a ``parallelism_config`` whose ``sp_size`` is above 1.

    Args:
        config: accelerate's ``ParallelismConfig`` or a dict of its keywords; None for the launcher's variables alone.
        sizes: Every size by its keyword.
        has_deepspeed: Whether the arguments or the launcher request DeepSpeed.
        has_fsdp: Whether ``fsdp`` is set.
        label_smoothing_factor: That of the arguments.
    """
    size = sizes["sp_size"]
    if not has_deepspeed:
        others = "; `fsdp` cannot be combined with it" if has_fsdp else ""
        yield config_problem("sp_size", size, f"sequence parallelism needs DeepSpeed{others}: set `deepspeed`.")
    for key in _EXCLUDED:
        if sizes[key] > 1:
            text = f"cannot be combined with `sp_size={size}`; set one of them to 1."
            yield config_problem(key, sizes[key], text, unsupported=True)
    attention = handler_value(config, "sp_handler", "sp_attn_implementation")
    if attention is not None and attention not in _ATTENTIONS and not _is_flash_kernel(attention):
        known = ", ".join(map(repr, _ATTENTIONS))
        text = f"must be one of {known}, or a flash-attention kernel of the Hub: others need a mask of all positions."
        yield config_problem("sp_attn_implementation", attention, text)
    if not _is_variable(config):
        yield from _length_problems(handler_value(config, "sp_handler", "sp_seq_length"), size)
    if label_smoothing_factor:
        text = (
            f"label smoothing is not supported with `sp_size={size}`, where each rank computes the loss of its chunk; "
            "transformers leaves it out in training. Set it to 0, or override `compute_loss`."
        )
        yield Problem("label_smoothing_factor", label_smoothing_factor, text, unsupported=True)


def _length_problems(length: Any, size: int) -> Iterator[Problem]:
    if not str(length).isdigit() or int(length) % size:
        text = (
            f"with `sp_seq_length_is_variable=False` it must be the tokens of every sequence, a multiple of "
            f"`sp_size={size}`."
        )
        yield config_problem("sp_seq_length", length, text)


def _is_flash_kernel(attention: object) -> bool:
    return isinstance(attention, str) and "/" in attention and "flash-attn" in attention


def _is_variable(config: object) -> bool:
    is_variable = handler_value(config, "sp_handler", "sp_seq_length_is_variable")
    return is_variable is None or str(is_variable).lower() == "true"


def rotation(config: object) -> Rotation:
    """Return how the ranks that share a sequence exchange keys and values: all at the same time, or one by one.

    Args:
        config: accelerate's ``ParallelismConfig`` or a dict of its keywords; None for the launcher's variable alone.
    """
    chosen: Rotation = handler_value(config, "cp_handler", "cp_comm_strategy") or "allgather"
    return chosen


def context_parallel_problems(config: object, sizes: Mapping[str, int], *, shards: bool) -> Iterator[Problem]:
    """Yield the problems of a ``parallelism_config`` whose ``cp_size`` is above 1.

    Args:
        config: accelerate's ``ParallelismConfig`` or a dict of its keywords; None for the launcher's variables alone.
        sizes: Every size by its keyword.
        shards: Whether FSDP is requested.
    """
    size = sizes["cp_size"]
    if not shards:
        text = "context parallelism needs FSDP: set `fsdp=True` and `fsdp_config={'version': 2}`."
        yield config_problem("cp_size", size, text)
    if rotation(config) not in _ROTATIONS:
        known = " or ".join(map(repr, _ROTATIONS))
        yield config_problem("cp_comm_strategy", rotation(config), f"must be {known}.")
