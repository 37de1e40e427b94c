"""Tensor parallelism: matrices split over consecutive ranks, and parameters sharded over data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.engine.parallel_mesh import TENSOR_PARALLEL, sharding_mesh
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies.device_mesh import DeviceMeshStrategy
from hf_compat.engine.strategies.fsdp.sharding import broadcast_from_rank0, shard_model
from hf_compat.engine.strategies.tensor_parallel_splitting import is_split, split_model

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["tensor_parallel_strategy"]


def tensor_parallel_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the tensor-parallel strategy of a run.

    It splits the model by its plan: parameters in the plan are DTensors, the others are replicated. With a
    data-parallel size above 1 all are sharded too, as with FSDP version 2.
    """
    settings = process_layout.fsdp or FsdpSettings(version=2)
    dtype = torch.bfloat16 if args.mixed_precision == "bf16" else None
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    keeps_masks = resolve_semantics(args.semantics).corrected

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        if is_split(model):
            return
        broadcast_from_rank0(model, device, upcast=dtype is not None)
        split_model(model, mesh[TENSOR_PARALLEL])
        if sharding_mesh(mesh).size() > 1:
            shard_model(
                model, settings, mesh=sharding_mesh(mesh), device=device, precision=precision, keeps_masks=keeps_masks
            )

    return DeviceMeshStrategy(process_layout, device, shard=shard, saves_sharded=settings.state_dict_type != "full")
