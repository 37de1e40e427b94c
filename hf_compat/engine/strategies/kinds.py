"""Creating the strategy of a ``lightning.Trainer`` by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.strategies import Strategy
from torch import nn

from hf_compat.engine.accelerators import lightning_accelerator
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.data_parallel.strategy import data_parallel_strategy
from hf_compat.engine.strategies.ddp.strategy import ddp_strategy
from hf_compat.engine.strategies.deepspeed.strategy import deepspeed_strategy
from hf_compat.engine.strategies.fsdp.version1 import fsdp1_strategy
from hf_compat.engine.strategies.fsdp.version2 import fsdp2_strategy
from hf_compat.engine.strategies.one_device import one_device_strategy
from hf_compat.engine.strategies.tensor_parallel.strategy import tensor_parallel_strategy

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["STRATEGIES", "device_keywords"]

STRATEGIES: dict[str, Callable[[Placement, TrainingArguments, nn.Module], Strategy]] = {
    "one device": one_device_strategy,
    "data parallel": data_parallel_strategy,
    "ddp": ddp_strategy,
    "fsdp1": fsdp1_strategy,
    "fsdp2": fsdp2_strategy,
    "deepspeed": deepspeed_strategy,
    "tensor parallel": tensor_parallel_strategy,
}
"""``Placement.strategy`` → a function that creates the strategy of a run from placement, arguments and model."""


def device_keywords(placement: Placement, args: TrainingArguments, model: nn.Module) -> dict[str, Any]:
    """Return the keywords of ``lightning.Trainer`` for devices, nodes and strategy."""
    device, launch = args.device, placement.launch
    devices: Any = launch.local_world_size
    if launch.world_size == 1 and device.type != "cpu":
        devices = [device.index or 0]
    strategy: Any = STRATEGIES[placement.strategy](placement, args, model)
    accumulation = args.accelerator_config.gradient_accumulation_kwargs or {}
    strategy.syncs_each_batch = bool(accumulation.get("sync_each_batch"))
    return {
        "accelerator": lightning_accelerator(device),
        "devices": devices,
        "num_nodes": launch.num_nodes,
        "strategy": strategy,
    }
