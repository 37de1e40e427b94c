"""The options of Lightning's strategy classes in a run: what each becomes, and which are refused.

``docs/lightning_strategies.md`` is generated from the table of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import DeepSpeedStrategy, Strategy, StrategyRegistry

from hf_compat.distributed.processes import import_deepspeed
from hf_compat.engine.internals.strategies import (
    DEEPSPEED_NAMES,
    parse_deepspeed_strategy,
    parts_of_strategy,
    plain_class,
)
from hf_compat.engine.keywords import user_plugins
from hf_compat.engine.strategy_table import NAMES, Support, refused, works

__all__ = ["OPTIONS", "deepspeed_meant", "refused_options", "strategy_spelled_out"]

_PLUGINS = {
    "checkpoint_io": works("As in `plugins`: for Lightning's own checkpoints."),
    "cluster_environment": works("As in `plugins`."),
    "precision_plugin": works("As in `plugins`."),
}
_DEVICES = {
    "accelerator": refused("the training arguments choose the device", "`use_cpu`, or CUDA_VISIBLE_DEVICES"),
    "parallel_devices": refused("the training arguments choose the devices", "`use_cpu`, or CUDA_VISIBLE_DEVICES"),
}
_PROCESSES = {
    "process_group_backend": refused(
        "the training arguments initialise the process group", "`TrainingArguments(ddp_backend=...)`"
    ),
    "timeout": refused("the training arguments initialise the process group", "`TrainingArguments(ddp_timeout=...)`"),
}
_WITH_HOOK = works("As in Lightning, on CPUs too; `ddp_comm_state` and `ddp_comm_wrapper` need a `ddp_comm_hook`.")
_OFFLOAD = works("`zero_optimization.offload_optimizer` in the DeepSpeed config, if `offload_optimizer` is set.")
_OFFLOAD_WEIGHTS = works("`zero_optimization.offload_param` in the DeepSpeed config, if `offload_parameters` is set.")
_LOSS_SCALE = works("The key of that name in `fp16` of the DeepSpeed config, which `fp16=True` enables.")

_KINDS: dict[str, type] = {
    "checkpoint_io": CheckpointIO,
    "cluster_environment": ClusterEnvironment,
    "precision_plugin": Precision,
}
"""Argument of a strategy → the kind of plugin that it is."""


def _in_section(section: str) -> Support:
    return works(f"The key of that name in `{section}` of the DeepSpeed config.")


OPTIONS: dict[str, dict[str, Support]] = {
    "DDPStrategy": {
        **_DEVICES,
        **_PLUGINS,
        **_PROCESSES,
        **dict.fromkeys(("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper"), _WITH_HOOK),
        "model_averaging_period": works("As in Lightning, with a `PostLocalSGDState` as `ddp_comm_state`."),
        "start_method": works("How `devices` processes are started without a launcher."),
        "kwargs": works("Keywords of torch's `DistributedDataParallel`; they override the fields `ddp_...`."),
    },
    "DeepSpeedStrategy": {
        **_DEVICES,
        **_PROCESSES,
        "cluster_environment": _PLUGINS["cluster_environment"],
        "precision_plugin": refused("the DeepSpeed config sets the precision", "`bf16`, `fp16` or `precision`"),
        "config": works(
            "The DeepSpeed config. Batch size, accumulation, clipping, `fp16` and `bf16` are `'auto'`, unless it has "
            "them: they follow the training arguments. Lightning itself drops the options that its constructor makes "
            "a config of (`stage` and those of offloading, `aio` and checkpointing) if it is given one."
        ),
        "zero_optimization": works("False is stage 0."),
        "logging_batch_size_per_gpu": works(
            "`train_micro_batch_size_per_gpu` in the DeepSpeed config, which must be `per_device_train_batch_size`."
        ),
        "zero_allow_untested_optimizer": works(
            "The key of that name in the DeepSpeed config; true for an optimizer that is not in the config."
        ),
        **dict.fromkeys(
            (
                *("stage", "sub_group_size", "contiguous_gradients", "overlap_comm", "allgather_partitions"),
                *("reduce_scatter", "allgather_bucket_size", "reduce_bucket_size"),
            ),
            _in_section("zero_optimization"),
        ),
        **dict.fromkeys(("offload_optimizer", "offload_optimizer_device", "optimizer_buffer_count"), _OFFLOAD),
        **dict.fromkeys(
            ("offload_parameters", "offload_params_device", "params_buffer_count", "params_buffer_size", "max_in_cpu"),
            _OFFLOAD_WEIGHTS,
        ),
        **dict.fromkeys(("nvme_path", "pin_memory"), works("The key of that name in both sections of offloading.")),
        **dict.fromkeys(
            ("block_size", "queue_depth", "single_submit", "overlap_events", "thread_count"), _in_section("aio")
        ),
        **dict.fromkeys(
            (
                *("partition_activations", "cpu_checkpointing"),
                *("contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
            ),
            _in_section("activation_checkpointing"),
        ),
        **dict.fromkeys(
            ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"), _LOSS_SCALE
        ),
        "remote_device": refused(
            "the model is there before the strategy", "`offload_parameters=True` to keep its weights elsewhere"
        ),
        "logging_level": refused("DeepSpeed logs at the level of the Trainer", "`TrainingArguments(log_level=...)`"),
        "load_full_weights": refused(
            "checkpoints are those of the Trainer", "`from_pretrained` to begin with the weights of a file"
        ),
        "exclude_frozen_parameters": refused(
            "checkpoints are those of transformers, which leave frozen parameters out of adapters only",
            "a peft model, or leave it out",
        ),
    },
    "FSDPStrategy": {
        **_DEVICES,
        **_PROCESSES,
        "cluster_environment": _PLUGINS["cluster_environment"],
        "checkpoint_io": refused("sharded checkpoints are written by `torch.distributed.checkpoint`", "no plugin"),
        "precision_plugin": refused("the training arguments set the precision", "`bf16`, `fp16` or `precision`"),
        "mixed_precision": refused("the training arguments set the precision", "`bf16`, `fp16` or `precision`"),
        "cpu_offload": works("`cpu_offload` of `fsdp_config`; on GPUs."),
        "auto_wrap_policy": works(
            "A set of layer classes is `transformer_layer_cls_to_wrap`, torch's size-based policy `min_num_params` of "
            "`fsdp_config`; others are refused."
        ),
        **dict.fromkeys(
            ("activation_checkpointing", "activation_checkpointing_policy"),
            works("`activation_checkpointing` of `fsdp_config`, for the layers of `auto_wrap_policy` and no others."),
        ),
        "sharding_strategy": works("`reshard_after_forward` of `fsdp_config`, by its name."),
        "state_dict_type": works("`state_dict_type` of `fsdp_config`."),
        "device_mesh": refused(
            "the mesh is that of all ranks, for hybrid sharding nodes by ranks of a node",
            "`sharding_strategy='HYBRID_SHARD'`",
        ),
        "kwargs": works(
            "`backward_prefetch`, `forward_prefetch`, `limit_all_gathers`, `use_orig_params` and `sync_module_states` "
            "of `fsdp_config`; others are refused."
        ),
    },
    "ModelParallelStrategy": {
        **_PROCESSES,
        "data_parallel_size": works("`dp_shard_size` of `parallelism_config`; by default the number of nodes."),
        "tensor_parallel_size": works(
            "`tp_size` of `parallelism_config`; by default the number of ranks of a node. 1 is refused: set `fsdp`."
        ),
        "save_distributed_checkpoint": works("Checkpoints are those of the training arguments: whole, as if False."),
    },
    "SingleDeviceStrategy": {
        "accelerator": _DEVICES["accelerator"],
        "checkpoint_io": _PLUGINS["checkpoint_io"],
        "precision_plugin": _PLUGINS["precision_plugin"],
        "device": works("Has to be the device that the training arguments choose."),
    },
}
"""Strategy class → each argument of its constructor → what becomes of it; one that is refused is so off its default."""


def refused_options(name: str) -> dict[str, Support]:
    """Return the arguments of the strategy class ``name`` that are refused, with the reasons."""
    return {option: one for option, one in OPTIONS.get(name, {}).items() if not one.works}


def strategy_spelled_out(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return ``keywords`` with what ``strategy`` stands for, and why that cannot be.

    As in Lightning a name may be in capitals, or one that a user has registered with `StrategyRegistry`, and plugins
    may be handed to a strategy.
    """
    meant, strategy = dict(keywords), keywords.get("strategy")
    if isinstance(strategy, str):
        strategy = strategy.lower()
        if strategy not in NAMES and strategy in StrategyRegistry:
            strategy = StrategyRegistry.get(strategy)
        meant["strategy"] = strategy
    if not isinstance(strategy, Strategy):
        return meant, []
    skipped = refused_options(plain_class(strategy).__name__)  # there is an error when the strategy is read
    parts = {name: part for name, part in parts_of_strategy(strategy).items() if name not in skipped}
    plugins = user_plugins(keywords)
    problems = [
        f"`lightning={{'strategy': {type(strategy).__name__}({name}=...), 'plugins': [{type(other).__name__}]}}` both "
        f"set the {name.replace('_', ' ')}: choose one of them."
        for name in parts
        for other in plugins
        if isinstance(other, _KINDS[name])
    ]
    if parts:
        meant["plugins"] = [*plugins, *parts.values()]
    return meant, problems


def deepspeed_meant(strategy: object, *, use_cpu: bool) -> dict[str, Any] | None:
    """Return the DeepSpeed config that the keyword ``strategy`` stands for; None if it is another strategy.

    Args:
        strategy: The user's strategy, a name or an instance.
        use_cpu: Whether the run is on the CPU, whatever devices there are; DeepSpeed detects its device on import.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    if isinstance(strategy, str) and strategy in DEEPSPEED_NAMES:
        import_deepspeed(torch.device("cpu" if use_cpu else "cuda"))
        strategy = StrategyRegistry.get(strategy)
    return parse_deepspeed_strategy(strategy) if isinstance(strategy, DeepSpeedStrategy) else None
