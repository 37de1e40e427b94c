"""``parallelism_config``, or the same from ``accelerate launch --use_parallelism_config``, as one value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed import requests_deepspeed
from hf_compat.arguments.fsdp import requests_fsdp
from hf_compat.arguments.problems import Problem, raise_all
from hf_compat.arguments.sequence_parallelism import (
    BACKENDS,
    HANDLERS,
    SequenceParallelism,
    config_problem,
    config_value,
    context_parallel_problems,
    handler_problems,
    launched_value,
    sequence_parallel_problems,
    sequence_parallelism,
    unused_handlers,
)

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments


USE_VARIABLE = "ACCELERATE_USE_PARALLELISM_CONFIG"
"""Set to ``true`` by ``accelerate launch --use_parallelism_config``."""

_SIZES = {
    "dp_replicate_size": "dp_replicate",
    "dp_shard_size": "dp_shard",
    "cp_size": "cp",
    "tp_size": "tp",
}
"""Supported size of accelerate's ``ParallelismConfig`` → field of ``ParallelSizes``."""
_UNSUPPORTED = {
    "ep_size": "expert parallelism is chosen as the model is loaded; remove it, and pass `distributed_config` to "
    "`from_pretrained`.",
    "pp_size": "transformers has pipelines for inference alone; remove it, and shard the model over the ranks, by "
    "`tp_size` or by `fsdp` with a `dp_shard_size`.",
}
"""Sizes that must be 1: the reason and the remedy."""
_OTHERS = ("sp_size", *HANDLERS, *BACKENDS)
"""Keywords without effect on the sizes of the mesh."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """The sizes of a device mesh, outermost dimension first; with all 1 there is none."""

    dp_replicate: int = 1
    """Number of replicas, each of which is sharded over ``dp_shard`` ranks."""
    dp_shard: int = 1
    """Number of ranks that see different batches and over which one replica's parameters are sharded."""
    cp: int = 1
    """Context-parallel size: consecutive ranks that share the sequences of the same batches, and shards of replicas."""
    tp: int = 1
    """Tensor-parallel size: consecutive ranks that see the same batches, each with a shard of every matrix."""

    @property
    def total(self) -> int:
        """The world size that the mesh needs."""
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def ranks_per_batch(self) -> int:
        """Number of consecutive ranks that get the same batches: whole ones, or parts of each sequence."""
        return self.cp * self.tp

    @property
    def keywords(self) -> dict[str, int]:
        """The sizes above 1 as keywords of accelerate's ``ParallelismConfig``."""
        sizes = {keyword: getattr(self, name) for keyword, name in _SIZES.items()}
        return {keyword: size for keyword, size in sizes.items() if size > 1}

    def __str__(self) -> str:
        return " x ".join(f"`{keyword}={size}`" for keyword, size in self.keywords.items())


def world_size_problem(sizes: ParallelSizes, world_size: int) -> str | None:
    """Return what is wrong about ``sizes`` in a run of ``world_size`` processes; None if their product is that."""
    if sizes.total == world_size:
        return None
    return (
        f"the sizes {sizes} multiply to {sizes.total}, but the world size is {world_size}. Start {sizes.total} "
        "processes, or change the sizes."
    )


def read_parallelism(args: TrainingArguments) -> ParallelSizes | None:
    """Return the device mesh that ``args`` or the launcher's variables request; None without one.

    Sequence parallelism has none of ours; see :func:`read_sequence_parallelism`.

    Raises:
        ArgumentsError: If they request something that is not supported.
    """
    raise_all(parallelism_problems(args))
    requested = _sizes(args.parallelism_config)
    if requested["sp_size"] > 1:
        return None
    sizes = ParallelSizes(**{name: requested[keyword] for keyword, name in _SIZES.items()})
    return None if sizes.total == 1 else sizes


def read_sequence_parallelism(args: TrainingArguments) -> SequenceParallelism | None:
    """Return the sequence parallelism that ``args`` or the launcher's variables request; None without it.

    Raises:
        ArgumentsError: If they request something that is not supported.
    """
    raise_all(parallelism_problems(args))
    return sequence_parallelism(args.parallelism_config, _sizes(args.parallelism_config))


def unused_handler_texts(args: TrainingArguments) -> Iterator[str]:
    """Yield a warning for each handler that has no effect, as its size is 1; it has none in accelerate either."""
    for handler, size in unused_handlers(args.parallelism_config, _sizes(args.parallelism_config)).items():
        yield (
            f"`parallelism_config`: `{handler}` is set, but `{size}` is 1. This handler will be ignored; remove it, or "
            f"set `{size}`."
        )


def parallelism_problems(args: TrainingArguments) -> Iterator[Problem]:
    """Yield the problems of ``parallelism_config``, or of the variables used in its place."""
    config = args.parallelism_config
    if isinstance(config, Mapping):
        for key in sorted(set(config) - {*_SIZES, *_UNSUPPORTED, *_OTHERS}, key=str):
            known = ", ".join((*_SIZES, *_OTHERS))
            yield config_problem(key, config[key], f"is not a keyword of `ParallelismConfig`; use {known}.")
    elif config is not None and not hasattr(config, "tp_size"):
        yield Problem("parallelism_config", config, "pass accelerate's `ParallelismConfig` or a dict of its keywords.")
        return
    yield from handler_problems(config, launched=_is_launched(config))
    yield from _mesh_problems(config)
    sizes = _sizes(config)
    wrong = {key: size for key, size in sizes.items() if not _is_count(size)}
    for key, size in wrong.items():
        yield config_problem(key, size, "must be an integer, 1 or more.")
    for key, advice in _UNSUPPORTED.items():
        if key not in wrong and sizes[key] > 1:
            yield config_problem(key, sizes[key], advice, unsupported=True)
    if not wrong and sizes["sp_size"] > 1:
        yield from sequence_parallel_problems(
            config,
            sizes,
            has_deepspeed=requests_deepspeed(args),
            has_fsdp=bool(args.fsdp),
            label_smoothing_factor=args.label_smoothing_factor,
        )
        return
    if not wrong:
        yield from _contradictions(sizes, shards=requests_fsdp(args), partitions=requests_deepspeed(args))
        if sizes["cp_size"] > 1:
            yield from context_parallel_problems(config, sizes, shards=requests_fsdp(args))


def _contradictions(sizes: Mapping[str, int], *, shards: bool, partitions: bool) -> Iterator[Problem]:
    """Yield the problems of sizes that do not go together.

    Args:
        sizes: Every size by its keyword.
        shards: Whether FSDP is requested.
        partitions: Whether DeepSpeed is, whose ranks all train on different batches, whatever the sizes call them.
    """
    replicas, shard, tensor = sizes["dp_replicate_size"], sizes["dp_shard_size"], sizes["tp_size"]
    if tensor == sizes["cp_size"] == 1 and shard > 1 and not (shards or partitions):
        text = "sharding without tensor parallelism is FSDP: set `fsdp=True` and `fsdp_config={'version': 2}` too."
        yield config_problem("dp_shard_size", shard, text, unsupported=True)
    if replicas > 1 and shard == 1 and (tensor > 1 or shards):
        what = f"a model that is split over `tp_size={tensor}` ranks" if tensor > 1 else "FSDP"
        text = f"replicas of {what} need a `dp_shard_size` above 1, as in accelerate; set it, or remove the replicas."
        yield config_problem("dp_replicate_size", replicas, text, unsupported=True)


def _sizes(config: object) -> dict[str, Any]:
    """Return every size; those that ``config`` does not set come from the launcher's variables, as in accelerate."""
    sizes, launched = {}, _is_launched(config)
    for key in (*_SIZES, "sp_size", *_UNSUPPORTED):
        size = config_value(config, key)
        if size is None and launched:
            text = launched_value(key)
            size = int(text) if text is not None and text.isdigit() else text
        sizes[key] = 1 if size is None else size
    return sizes


def _is_launched(config: object) -> bool:
    """Return whether the launcher's variables count where ``config`` says nothing."""
    return config is not None or os.environ.get(USE_VARIABLE, "").lower() in ("1", "true")


def _mesh_problems(config: object) -> Iterator[Problem]:
    """Yield a problem if ``config`` has a device mesh of its own, whose ranks have another order than by its sizes."""
    mesh = None if isinstance(config, Mapping) else getattr(config, "device_mesh", None)
    if mesh is None:
        return
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        text = (
            f"a mesh with the order of ranks {ranks} is not supported: the Trainer divides ranks in their order. Leave "
            "the mesh to the Trainer, and start the processes in the order that you need."
        )
        yield config_problem("device_mesh", mesh, text, unsupported=True)


def _is_count(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1
