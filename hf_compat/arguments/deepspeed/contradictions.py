"""Contradictions between a DeepSpeed config and other arguments, which a Trainer refuses."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed.requested import config_in_use
from hf_compat.arguments.parallelism import read_sequence_parallelism

if TYPE_CHECKING:
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["config_contradictions", "field_contradictions"]

_OFFLOADED = ("offload_param", "offload_optimizer")
"""Sections of ``zero_optimization`` that offload to the CPU or to a disk."""


def field_contradictions(args: TrainingArguments) -> Iterator[str]:
    """Yield a message for each field that is not supported with DeepSpeed beside another one, or with ZeRO-3."""
    if args.save_only_model and args.load_best_model_at_end:
        yield (
            "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`: it loads full "
            "checkpoints only. Set one of them to False."
        )
    if args.auto_find_batch_size and config_in_use(args).is_zero3():
        yield (
            "`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3, whose parameters cannot be gathered "
            "after an error in the middle of a pass. Set `per_device_train_batch_size`, or use ZeRO-1 or 2."
        )


def config_contradictions(args: TrainingArguments, *, in_background: bool) -> Iterator[str]:
    """Yield a message for each key of the config that the fields, or the ranks, do not allow.

    Args:
        args: The training arguments.
        in_background: Whether checkpoints are saved in the background.
    """
    deepspeed = config_in_use(args)
    config = deepspeed.config
    yield from _sequence_problems(read_sequence_parallelism(args), config)
    if deepspeed.is_zero3():
        yield from _zero_3_problems(args.world_size, config["zero_optimization"])
    yield from _writer_problems(args, config, in_background=in_background)
    yield from _universal_problems(config, loads_best=args.load_best_model_at_end)


def _sequence_problems(sequences: SequenceParallelism | None, config: dict[str, Any]) -> Iterator[str]:
    """Yield a message if ``config`` has another number of ranks share sequences than ``sequences``."""
    size, wanted = config.get("sequence_parallel_size"), 1 if sequences is None else sequences.size
    if size not in (None, wanted):
        yield (
            f"`sequence_parallel_size={size}` in the DeepSpeed config, but `sp_size` of `parallelism_config` is "
            f"{wanted}: the Trainer shares out sequences and batches by the latter alone. Remove the former, and set "
            "`sp_size`."
        )


def _zero_3_problems(world_size: int, zero: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each key of the section ``zero`` that ZeRO-3 reads, as no other stage does, and fails on."""
    size = zero.get("zero_hpz_partition_size", 1)
    if isinstance(size, int) and 1 < size < world_size and world_size % size:
        yield (
            f"`zero_optimization.zero_hpz_partition_size={size}` in the DeepSpeed config does not divide the "
            f"{world_size} processes into groups of that size. Set a divisor of {world_size}, or 1."
        )
    offloaded = [name for name in _OFFLOADED if (zero.get(name) or {}).get("device") == "nvme"]
    if offloaded and not _loads_async_io():
        keys = " and ".join(f"`zero_optimization.{name}.device=nvme`" for name in offloaded)
        yield (
            f"{keys} in the DeepSpeed config: DeepSpeed cannot build its op `async_io` here. Install libaio "
            "with its header (libaio-dev or libaio-devel) and ninja, or set the device to cpu. `ds_report` lists what "
            "it can build."
        )


def _loads_async_io() -> bool:
    """Return whether DeepSpeed's op that reads and writes a disk is installed, or can be built."""
    git_version_info = importlib.import_module("deepspeed.git_version_info")
    if git_version_info.installed_ops.get("async_io"):
        return True
    return bool(importlib.import_module("deepspeed.ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False))


def _writer_problems(args: TrainingArguments, config: dict[str, Any], *, in_background: bool) -> Iterator[str]:
    """Yield a message if ``config`` has DeepSpeed write checkpoints in a way that the folders do not allow."""
    writer = (config.get("checkpoint") or {}).get("writer")
    decoupled = isinstance(writer, dict) and writer.get("decoupled")
    if decoupled or config.get("datastates_ckpt", False) is not False:
        name = "checkpoint.writer.decoupled" if decoupled else "datastates_ckpt"
        yield (
            f"`{name}` in the DeepSpeed config is not supported: DeepSpeed would still be writing files after the "
            "checkpoint folder has appeared. Remove it, and set `save_async=True` to save in the background."
        )
    elif writer is not None and in_background:
        yield (
            f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE) is not supported with `checkpoint.writer` in "
            "the DeepSpeed config: DeepSpeed's writer would copy the files once more, into its own buffers. Remove one "
            "of the two."
        )


def _universal_problems(config: dict[str, Any], *, loads_best: bool) -> Iterator[str]:
    """Yield a message for each argument that contradicts resuming a universal checkpoint, if ``config`` requests it."""
    if not (config.get("checkpoint") or {}).get("load_universal"):
        return
    name = "`checkpoint.load_universal=true` in the DeepSpeed config"
    if (config.get("zero_optimization") or {}).get("stage", 0) == 0:
        yield (
            f"{name} is not supported without ZeRO: DeepSpeed reads universal checkpoints into ZeRO's optimizers. "
            "Set `zero_optimization.stage` to 1, 2 or 3."
        )
    if loads_best:
        yield (
            f"{name} with `load_best_model_at_end=True` is not supported: the run's own checkpoints are not "
            "universal, so the best one could not be loaded at the end. Set one of them to False, or save once with "
            "the new number of processes and resume that checkpoint without `load_universal`."
        )
