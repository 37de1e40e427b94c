"""The private names of Lightning's ``ModelParallelStrategy`` that hf_compat uses, with the contract it relies on."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["create_device_mesh", "parse_model_parallel_strategy"]


def create_device_mesh(data: int, tensor: int, device: torch.device) -> DeviceMesh:
    """Return the device mesh that Lightning's strategy will create, before there is a strategy.

    Contract: it is ``data_parallel`` by ``tensor_parallel``; the ranks of a tensor-parallel group are consecutive.
    """
    return init_device_mesh(device.type, (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel"))


def parse_model_parallel_strategy(
    strategy: ModelParallelStrategy,
) -> tuple[int | Literal["auto"], int | Literal["auto"], list[str]]:
    """Return data- and tensor-parallel size of the user's ``strategy``, and which arguments are not supported.

    Contract: Lightning's ``ModelParallelStrategy`` stores each argument as an attribute with an underscore.
    """
    plain = ModelParallelStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of `timeout`",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    return strategy._data_parallel_size, strategy._tensor_parallel_size, problems
