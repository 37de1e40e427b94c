"""What ``parallelism_config``, or ``accelerate launch --use_parallelism_config``, asks for, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from hf_compat.arguments.checking.problems import Problem, raise_all

__all__ = ["ParallelSizes", "parallelism_problems", "read_parallelism"]

USE_VARIABLE = "ACCELERATE_USE_PARALLELISM_CONFIG"
"""Set to ``true`` by ``accelerate launch --use_parallelism_config``."""

_SIZES = {
    "dp_shard_size": "the model's parts are sharded over so many processes",
    "tp_size": "each matrix is split over so many processes",
}
"""Keyword of accelerate's ``ParallelismConfig`` to what is done with it."""
_REFUSED = {
    "dp_replicate_size": "Replicas of a model that is split are not supported yet; set `dp_shard_size` instead.",
    "cp_size": "Splitting sequences by their context is not supported yet; drop it.",
    "sp_size": "Splitting sequences is not supported yet; drop it.",
    "ep_size": "Splitting experts is not supported yet; drop it.",
}
"""Sizes that cannot be anything but 1, and what to do."""
_WITHOUT_MEANING = ("tp_handler", "cp_handler", "sp_handler", "cp_backend", "sp_backend")
"""Keywords that say nothing where only matrices are split."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """A grid of processes: those of one row split each matrix, those of one column shard what a row holds."""

    data: int
    """Processes that see different batches."""
    tensor: int
    """Processes that see the same batches, each with a part of each matrix; they are neighbours."""

    @property
    def total(self) -> int:
        """All processes."""
        return self.data * self.tensor


def read_parallelism(args: Any) -> ParallelSizes | None:
    """Return the grid of processes that ``args`` or the launcher's variables ask for; None if matrices stay whole.

    Raises:
        ArgumentsError: If they ask for what cannot be carried out.
    """
    raise_all(parallelism_problems(args))
    sizes = _sizes(args.parallelism_config)
    return None if sizes["tp_size"] == 1 else ParallelSizes(data=sizes["dp_shard_size"], tensor=sizes["tp_size"])


def parallelism_problems(args: Any) -> Iterator[Problem]:
    """Yield what is wrong with ``parallelism_config`` and the variables in its place."""
    given = args.parallelism_config
    if isinstance(given, Mapping):
        for key in set(given) - {*_SIZES, *_REFUSED, *_WITHOUT_MEANING}:
            known = ", ".join((*_SIZES, *_REFUSED))
            yield _problem(key, given[key], f"`ParallelismConfig` has no such keyword; it has {known}.")
    elif given is not None and not hasattr(given, "tp_size"):
        yield Problem("parallelism_config", given, "pass accelerate's `ParallelismConfig` or a dict of its keywords.")
        return
    sizes = _sizes(given)
    wrong = {key: size for key, size in sizes.items() if not _is_count(size)}
    for key, size in wrong.items():
        yield _problem(key, size, "must be a whole number, 1 or more.")
    for key, advice in _REFUSED.items():
        if key not in wrong and sizes[key] > 1:
            yield _problem(key, sizes[key], advice, unsupported=True)
    if not wrong and sizes["tp_size"] == 1 and sizes["dp_shard_size"] > 1:
        text = "without a `tp_size` above 1 this is FSDP: set `fsdp=True` and `fsdp_config={'version': 2}` instead."
        yield _problem("dp_shard_size", sizes["dp_shard_size"], text, unsupported=True)


def _sizes(given: Any) -> dict[str, Any]:
    """Return every size; where ``given`` says nothing the launcher's variable counts, as in accelerate."""
    sizes = {}
    launched = given is not None or os.environ.get(USE_VARIABLE, "").lower() in ("1", "true")
    for key in (*_SIZES, *_REFUSED):
        size = given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
        if size is None and launched:
            text = os.environ.get(f"PARALLELISM_CONFIG_{key.upper()}", "1")
            size = int(text) if text.isdigit() else text
        sizes[key] = 1 if size is None else size
    return sizes


def _is_count(size: Any) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1


def _problem(key: str, value: Any, text: str, *, unsupported: bool = False) -> Problem:
    return Problem("parallelism_config", {key: value}, text, unsupported=unsupported)
