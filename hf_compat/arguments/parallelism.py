"""``parallelism_config``, or the same from ``accelerate launch --use_parallelism_config``, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.problems import Problem, raise_all

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["ParallelSizes", "parallelism_problems", "read_parallelism"]

USE_VARIABLE = "ACCELERATE_USE_PARALLELISM_CONFIG"
"""Set to ``true`` by ``accelerate launch --use_parallelism_config``."""

_SIZES = {
    "dp_shard_size": "data-parallel size, over which parameters are sharded",
    "tp_size": "tensor-parallel size",
}
"""Supported sizes of accelerate's ``ParallelismConfig``, and their meaning."""
_UNSUPPORTED = {
    "dp_replicate_size": "replicas of a tensor-parallel model are not supported yet; set `dp_shard_size` instead.",
    "cp_size": "context parallelism is not supported yet; remove it.",
    "sp_size": "sequence parallelism is not supported yet; remove it.",
    "ep_size": "expert parallelism is not supported yet; remove it.",
}
"""Sizes that must be 1: the reason and the remedy."""
_IGNORED = ("tp_handler", "cp_handler", "sp_handler", "cp_backend", "sp_backend")
"""Keywords without effect under tensor parallelism alone."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """A two-dimensional device mesh: tensor parallel along rows, sharded data parallel along columns."""

    data: int
    """Data-parallel size: ranks that see different batches."""
    tensor: int
    """Tensor-parallel size: consecutive ranks that see the same batches, each with a shard of every matrix."""

    @property
    def total(self) -> int:
        """The world size that the mesh needs."""
        return self.data * self.tensor


def read_parallelism(args: TrainingArguments) -> ParallelSizes | None:
    """Return the mesh that ``args`` or the launcher's variables request; None without tensor parallelism.

    Raises:
        ArgumentsError: If they request something that is not supported.
    """
    raise_all(parallelism_problems(args))
    sizes = _sizes(args.parallelism_config)
    return None if sizes["tp_size"] == 1 else ParallelSizes(data=sizes["dp_shard_size"], tensor=sizes["tp_size"])


def parallelism_problems(args: TrainingArguments) -> Iterator[Problem]:
    """Yield the problems of ``parallelism_config``, or of the variables used in its place."""
    given = args.parallelism_config
    if isinstance(given, Mapping):
        for key in set(given) - {*_SIZES, *_UNSUPPORTED, *_IGNORED}:
            known = ", ".join((*_SIZES, *_UNSUPPORTED))
            yield _problem(key, given[key], f"is not a keyword of `ParallelismConfig`; use {known}.")
    elif given is not None and not hasattr(given, "tp_size"):
        yield Problem("parallelism_config", given, "pass accelerate's `ParallelismConfig` or a dict of its keywords.")
        return
    sizes = _sizes(given)
    wrong = {key: size for key, size in sizes.items() if not _is_count(size)}
    for key, size in wrong.items():
        yield _problem(key, size, "must be an integer, 1 or more.")
    for key, advice in _UNSUPPORTED.items():
        if key not in wrong and sizes[key] > 1:
            yield _problem(key, sizes[key], advice, unsupported=True)
    if not wrong and sizes["tp_size"] == 1 and sizes["dp_shard_size"] > 1:
        text = "sharding without tensor parallelism is FSDP: set `fsdp=True` and `fsdp_config={'version': 2}` instead."
        yield _problem("dp_shard_size", sizes["dp_shard_size"], text, unsupported=True)


def _sizes(given: object) -> dict[str, Any]:
    """Return every size; those that ``given`` does not set come from the launcher's variables, as in accelerate."""
    sizes = {}
    launched = given is not None or os.environ.get(USE_VARIABLE, "").lower() in ("1", "true")
    for key in (*_SIZES, *_UNSUPPORTED):
        size = given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
        if size is None and launched:
            text = os.environ.get(f"PARALLELISM_CONFIG_{key.upper()}", "1")
            size = int(text) if text.isdigit() else text
        sizes[key] = 1 if size is None else size
    return sizes


def _is_count(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1


def _problem(key: str, value: object, text: str, *, unsupported: bool = False) -> Problem:
    return Problem("parallelism_config", {key: value}, text, unsupported=unsupported)
