"""FSDP version 2: the model's parameters sharded over ranks by torch's ``fully_shard``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.device_mesh import DeviceMeshStrategy
from hf_compat.engine.strategies.fsdp.sharding import shard_model, sharding_dtype

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["fsdp2_strategy"]


def fsdp2_strategy(placement: Placement, args: TrainingArguments, model: nn.Module) -> DeviceMeshStrategy:
    """Return the FSDP version 2 strategy of a run.

    Raises:
        TrainerSetupError: If an argument is not supported with FSDP version 2.
    """
    settings, device, dtype = placement.fsdp, args.device, sharding_dtype(args)
    assert settings is not None, "the strategy is FSDP"

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        if not isinstance(model, FSDPModule):
            shard_model(model, settings, mesh=mesh["data_parallel"], device=device, dtype=dtype)

    return DeviceMeshStrategy(placement, device, shard=shard, saves_sharded=settings.state_dict_type != "full")
