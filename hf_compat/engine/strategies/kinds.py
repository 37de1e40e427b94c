"""Creating the strategy of a ``lightning.Trainer`` by its name."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import nn

from hf_compat.arguments.accelerator_config import syncs_each_batch
from hf_compat.engine.lightning_accelerator import lightning_accelerator
from hf_compat.engine.process_layout import ProcessLayout

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["STRATEGIES", "device_keywords"]

STRATEGIES = {
    "one device": "one_device.one_device_strategy",
    "data parallel": "data_parallel.data_parallel_strategy",
    "ddp": "ddp.ddp_strategy",
    "fsdp1": "fsdp.version1.fsdp1_strategy",
    "fsdp2": "fsdp.version2.fsdp2_strategy",
    "deepspeed": "deepspeed.strategy.deepspeed_strategy",
    "tensor parallel": "tensor_parallel.tensor_parallel_strategy",
    "presharded": "presharded.presharded_strategy",
}
"""``ProcessLayout.strategy`` → the function in this package that creates the strategy of a run.

By their names, as a run imports one of them. Each takes the layout, the device, the training arguments and the model.
"""


def _create(process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module) -> Strategy:
    builder = pkgutil.resolve_name(f"{__package__}.{STRATEGIES[process_layout.strategy]}")
    strategy: Strategy = builder(process_layout, device, args, model)
    return strategy


def device_keywords(process_layout: ProcessLayout, args: TrainingArguments, model: nn.Module) -> dict[str, Any]:
    """Return the keywords of ``lightning.Trainer`` for devices, nodes and strategy."""
    device, launch = args.device, process_layout.launch
    devices: Any = launch.local_world_size
    if launch.world_size == 1 and device.type != "cpu":
        devices = [device.index or 0]
    strategy: Any = _create(process_layout, device, args, model)
    strategy.syncs_each_batch = syncs_each_batch(args)
    return {
        "accelerator": lightning_accelerator(device),
        "devices": devices,
        "num_nodes": launch.num_nodes,
        "strategy": strategy,
    }
