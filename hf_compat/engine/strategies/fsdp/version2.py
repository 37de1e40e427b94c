"""FSDP version 2: the model's parameters sharded over ranks by torch's ``fully_shard``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.engine.parallel_mesh import sharding_mesh
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies.device_mesh import DeviceMeshStrategy
from hf_compat.engine.strategies.fsdp.sharding import shard_model

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["fsdp2_strategy"]


def fsdp2_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the FSDP version 2 strategy of a run."""
    settings = process_layout.fsdp
    assert settings is not None, "the strategy is FSDP"
    dtype = computing_dtype(args.mixed_precision, device)
    # As accelerate: units return the dtype that they compute in, the loss included, and no autocast is around them.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    keeps_masks = resolve_semantics(args.semantics).corrected

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        if not isinstance(model, FSDPModule):
            shard_model(
                model, settings, mesh=sharding_mesh(mesh), device=device, precision=precision, keeps_masks=keeps_masks
            )

    return DeviceMeshStrategy(process_layout, device, shard=shard, saves_sharded=settings.state_dict_type != "full")


def computing_dtype(mixed_precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of mixed precision; None without it, and for float16 on the CPU, which computes in float32."""
    if mixed_precision == "fp16" and device.type == "cpu":
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision)
