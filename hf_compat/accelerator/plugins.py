"""The parallelism of a run as other code reads it: accelerate's own plugins where it is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed.requested import uses_deepspeed
from hf_compat.arguments.fsdp.settings import LOADING_VARIABLE
from hf_compat.arguments.parallelism import ParallelSizes, read_parallelism, read_sequence_parallelism
from hf_compat.arguments.sequence_parallelism import SequenceParallelism, rotation
from hf_compat.distributed.accelerate_state import accelerate_module

if TYPE_CHECKING:
    import torch

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.fsdp.settings import FsdpSettings

__all__ = ["FsdpVersion", "fsdp_plugin", "parallelism_config"]

_WRAPPINGS = {"transformer": "TRANSFORMER_BASED_WRAP", "size": "SIZE_BASED_WRAP", "none": "NO_WRAP"}


@dataclass(frozen=True, slots=True)
class FsdpVersion:
    """Stands for accelerate's FSDP plugin where accelerate is not installed."""

    fsdp_version: int
    """1 or 2."""


def fsdp_plugin(settings: FsdpSettings | None, mixed_precision: str, device: torch.device) -> Any:
    """Return accelerate's FSDP plugin with ``settings``; None without FSDP.

    Args:
        settings: How FSDP shards the model; None without FSDP.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        device: The device of this rank; torch synchronises the ranks' weights on GPUs only.
    """
    if settings is None:
        return None
    module = accelerate_module("accelerate.utils")
    if module is None:
        return FsdpVersion(settings.version)
    before = os.environ.get(LOADING_VARIABLE)
    try:
        plugin = module.FullyShardedDataParallelPlugin(**_keywords(settings, on_cpu=device.type == "cpu"))
    finally:  # the plugin sets it, though it is the arguments' to set
        if before is None:
            os.environ.pop(LOADING_VARIABLE, None)
        else:
            os.environ[LOADING_VARIABLE] = before
    if mixed_precision != "no":
        plugin.set_mixed_precision(mixed_precision)
    return plugin


def _keywords(settings: FsdpSettings, *, on_cpu: bool) -> dict[str, Any]:
    shared = {
        "fsdp_version": settings.version,
        "auto_wrap_policy": _WRAPPINGS[settings.wrapping],
        "transformer_cls_names_to_wrap": list(settings.layer_classes) or None,
        "min_num_params": settings.min_num_params,
        "cpu_offload": settings.cpu_offload,
        "state_dict_type": f"{settings.state_dict_type.upper()}_STATE_DICT",
        "activation_checkpointing": settings.activation_checkpointing,
        "cpu_ram_efficient_loading": settings.cpu_ram_efficient_loading and not on_cpu,
    }
    if settings.version == 2:
        return shared | {"reshard_after_forward": settings.reshards_after_forward}
    return shared | {
        "reshard_after_forward": settings.sharding.upper(),
        "backward_prefetch": settings.backward_prefetch and settings.backward_prefetch.upper(),
        "forward_prefetch": settings.forward_prefetch,
        "limit_all_gathers": settings.limit_all_gathers,
        "use_orig_params": settings.use_orig_params,
        "sync_module_states": settings.sync_module_states and not on_cpu,
    }


def parallelism_config(args: TrainingArguments, sizes: ParallelSizes) -> Any:
    """Return accelerate's ``ParallelismConfig`` of ``args``, of the launcher or of ``sizes``; None without one.

    Without accelerate, our own value of the sizes.

    Args:
        args: The training arguments.
        sizes: Sizes of the device mesh, which a model that was sharded as it was loaded may have chosen.
    """
    given = args.parallelism_config
    if given is not None and not isinstance(given, Mapping):
        return given
    sequences = read_sequence_parallelism(args)
    if sequences is not None:
        return _sequence_parallelism_config(sequences)
    if read_parallelism(args) is None:
        if sizes.tp == 1 or uses_deepspeed(args):
            return None
        # As transformers: replicas and shards, which are the model's own matter, count together.
        sizes = ParallelSizes(dp_shard=sizes.dp_replicate * sizes.dp_shard, tp=sizes.tp)
    module = accelerate_module("accelerate.utils")
    if module is None:
        return sizes
    handlers = {}
    if sizes.cp > 1:
        handlers["cp_handler"] = module.TorchContextParallelConfig(cp_comm_strategy=rotation(given))
    return module.ParallelismConfig(**sizes.keywords, **handlers)


def _sequence_parallelism_config(sequences: SequenceParallelism) -> Any:
    module = accelerate_module("accelerate.utils")
    if module is None:
        return sequences
    handler = module.DeepSpeedSequenceParallelConfig(
        sp_seq_length=sequences.length,
        sp_seq_length_is_variable=sequences.length is None,
        sp_attn_implementation=sequences.attention,
    )
    return module.ParallelismConfig(
        sp_size=sequences.size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=sequences.data
    )
