"""The defaults of the fields of ``TrainingArguments``, and the values of those that have few."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

__all__ = ["DDP_BACKENDS", "HALF_PRECISION_BACKENDS", "LOG_LEVELS", "SAMPLING_STRATEGIES", "START_METHODS", "defaults"]

DDP_BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
HALF_PRECISION_BACKENDS = ("auto", "cuda_amp", "apex", "cpu_amp")
SAMPLING_STRATEGIES = ("random", "sequential", "group_by_length", "batch_rebalance")
START_METHODS = ("fork", "spawn", "forkserver")

LOG_LEVELS: dict[str, int] = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Name to level of ``logging``; -1 does not change the level."""


@cache
def defaults() -> Mapping[str, object]:
    """Return the default of each field of ``TrainingArguments``; a subclass may have another one."""
    from hf_compat.arguments.training_arguments import TrainingArguments  # is built on the rules, which compare values

    return MappingProxyType(
        {
            item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            for item in dataclasses.fields(TrainingArguments)
        }
    )
