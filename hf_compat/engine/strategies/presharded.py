"""Models that ``from_pretrained(distributed_config=...)`` has sharded: by FSDP 2, tensor or expert parallelism."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from hf_compat.arguments.deepspeed.requested import uses_deepspeed
from hf_compat.arguments.parallelism import ParallelSizes, world_size_problem
from hf_compat.engine.process_layout import ProcessLayout, with_mesh
from hf_compat.engine.strategies.device_mesh import DeviceMeshStrategy
from hf_compat.errors import ModelError
from hf_compat.model_facts import presharded_size

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["presharded_layout", "presharded_strategy"]


def presharded_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the strategy of a model that ``from_pretrained`` has sharded."""
    return DeviceMeshStrategy(process_layout, device, shard=None, saves_sharded=False)


def presharded_layout(
    layout: ProcessLayout, model: nn.Module, args: TrainingArguments, strategy: object
) -> ProcessLayout:
    """Return ``layout`` with the device mesh over which ``from_pretrained`` has sharded ``model``; every rank calls it.

    Args:
        layout: The ranks, and what arguments and keywords request.
        model: The model.
        args: The training arguments.
        strategy: The user's keyword ``strategy`` of ``lightning.Trainer``.

    Raises:
        ModelError: If the model is a pipeline, or the arguments request that it is sharded once more, or otherwise.
    """
    stages = presharded_size(model, "pp_size")
    if stages > 1:
        raise ModelError(
            f"`model`: pipeline parallelism (`pp_size={stages}` of its `distributed_config`) is for inference. "
            "Load it with `tp_size` or `fsdp_size` to train it."
        )
    sizes = ParallelSizes(
        dp_replicate=presharded_size(model, "dp_replicate_size"),
        dp_shard=presharded_size(model, "fsdp_size"),
        tp=presharded_size(model, "tp_size"),
    )
    requested = {
        "`fsdp`": layout.fsdp is not None,
        "`deepspeed`": uses_deepspeed(args),
        "`strategy` of `lightning`": strategy != "auto",
        f"`parallelism_config` with {layout.sizes}": layout.mesh is not None and layout.sizes != sizes,
    }
    twice = [name for name, is_requested in requested.items() if is_requested]
    if twice:
        raise ModelError(
            f"`model`: `from_pretrained` has sharded it already, with {sizes} of its `distributed_config`, which "
            f"contradicts {' and '.join(twice)}. Remove the latter, or load the model without `distributed_config`."
        )
    if problem := world_size_problem(sizes, layout.launch.world_size):
        raise ModelError(f"`model`: {problem}")
    layout = replace(layout, strategy="presharded")
    return with_mesh(layout, sizes, args.device) if layout.mesh is None else layout
