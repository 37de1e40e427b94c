"""The context-parallel part of ``parallelism_config``, or of the launcher's variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.parallelism_values import config_problem, handler_value

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["Rotation", "context_parallel_problems", "rotation"]

Rotation = Literal["allgather", "alltoall"]
_ROTATIONS = ("allgather", "alltoall")


def rotation(given: object) -> Rotation:
    """Return how the ranks that share a sequence exchange keys and values: all at the same time, or one by one.

    Args:
        given: accelerate's ``ParallelismConfig`` or a dict of its keywords; None for the launcher's variable alone.
    """
    chosen: Rotation = handler_value(given, "cp_handler", "cp_comm_strategy") or "allgather"
    return chosen


def context_parallel_problems(args: TrainingArguments, sizes: Mapping[str, int], *, shards: bool) -> Iterator[Problem]:
    """Yield the problems of a ``parallelism_config`` whose ``cp_size`` is above 1.

    Args:
        args: The training arguments.
        sizes: Every size by its keyword.
        shards: Whether FSDP is requested.
    """
    given, size = args.parallelism_config, sizes["cp_size"]
    if not shards:
        text = "context parallelism needs FSDP: set `fsdp=True` and `fsdp_config={'version': 2}`."
        yield config_problem("cp_size", size, text)
    if rotation(given) not in _ROTATIONS:
        known = " or ".join(map(repr, _ROTATIONS))
        yield config_problem("cp_comm_strategy", rotation(given), f"must be {known}.")
