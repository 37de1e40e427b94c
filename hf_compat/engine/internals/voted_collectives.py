"""Collectives of torch and DeepSpeed that begin with a vote, for engines that communicate in every layer.

Sharded models gather parameters and reduce gradients all through forward and backward pass, inside libraries. While an
attempt is under way, the ranks vote ahead of each of these collectives on whether one of them has failed: see
:mod:`hf_compat.distributed.oom_consensus`.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from hf_compat.distributed.oom_consensus import vote

__all__ = ["voted_collectives"]

_MODULES = (
    *("torch.distributed", "torch.distributed.tensor._collective_utils", "deepspeed.comm"),
    "transformers.distributed.expert_parallel",
)
"""Modules in which libraries look collectives up at each call, or have imported them by name."""
_OPERATORS = ("_c10d_functional", "_dtensor")
"""Namespaces of ``torch.ops`` whose operators functional collectives call, as do the gradients of these."""
_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_object"),
    *("all_gather_single", "all_gather_tensor", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "allgather_fn", "barrier", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_fn"),
    *("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "scatter"),
    *("scatter_object_list", "shard_dim_alltoall"),
)
"""Their names, of several releases."""


@contextmanager
def voted_collectives() -> Iterator[None]:
    """Context in which the collectives of training begin with a vote of the attempt under way; every rank enters it.

    Threads that Python has started, such as those of background saves, communicate at their own times, without a vote;
    backward passes on GPUs run in threads of torch's.
    """
    main = threading.get_ident()
    replaced: list[tuple[ModuleType, str, Any]] = []
    modules: list[ModuleType] = [sys.modules[name] for name in _MODULES if name in sys.modules]
    operators: list[ModuleType] = [getattr(torch.ops, name) for name in _OPERATORS]
    for module, name in itertools.product((*modules, *operators), _COLLECTIVES):
        if callable(function := getattr(module, name, None)):
            replaced.append((module, name, function))
            setattr(module, name, (_VotedOperator if module in operators else _voted)(function, main))
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)


class _VotedOperator:
    """An operator of torch that begins with a vote; its overloads are the operator's own.

    Contract: ``torch.distributed._functional_collectives``, and since torch 2.13 the gradients that it registers, look
    operators up in ``torch.ops`` at each call.

    Args:
        operator: The operator.
        main: The thread that trains.
    """

    def __init__(self, operator: Any, main: int) -> None:
        self._operator = operator
        self._call = _voted(operator, main)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)


def _voted(function: Callable[..., Any], main: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def voted(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == main or _is_of_torch(threading.current_thread()):
            vote()
        return function(*args, **kwargs)

    return voted


def _is_of_torch(thread: threading.Thread) -> bool:
    """Return whether ``thread`` was not started by Python, which gives it a substitute of this name."""
    return thread.name.startswith("Dummy-")
