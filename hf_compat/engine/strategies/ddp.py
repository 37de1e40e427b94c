"""DDP: a copy of the model on each rank, in torch's ``DistributedDataParallel``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.internals.strategies import RawModelDDPStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.model_facts import is_pretrained_model

__all__ = ["DDPStrategy", "ddp_settings", "ddp_strategy"]


class DDPStrategy(ModelStrategy, RawModelDDPStrategy):
    """A copy of the model on each rank, gradients averaged in the last backward pass of each window.

    The wrapper goes around the model itself: it is the Trainer's ``model_wrapped``, and what ``compute_loss`` is given.

    Args:
        placement: Which rank of how many this is.
        device: The device of this rank.
        settings: Keywords of torch's ``DistributedDataParallel``.
        hooks: Keywords of Lightning's ``DDPStrategy`` that say how gradients are communicated.
    """

    def __init__(
        self, placement: Placement, device: torch.device, settings: dict[str, Any], hooks: dict[str, Any]
    ) -> None:
        super().__init__(cluster_environment=LaunchedEnvironment(placement.launch), **hooks)
        self._device = device
        self._settings = settings

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """Return ``model`` with gradients averaged over all ranks, its weights those of rank 0."""
        return DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._settings)


_DDP_FIELDS = {
    "ddp_bucket_cap_mb": "bucket_cap_mb",
    "ddp_broadcast_buffers": "broadcast_buffers",
    "ddp_static_graph": "static_graph",
}
"""Field of ``TrainingArguments`` to the keyword of ``DistributedDataParallel`` that it sets if it is not None."""


def ddp_settings(args: Any, model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``DistributedDataParallel`` that follow from ``args``; those ``given`` win.

    Unused parameters are looked for unless a model of transformers checkpoints its activations, which excludes it.
    """
    unused = args.ddp_find_unused_parameters
    if unused is None:
        checkpoints = args.activation_checkpointing or args.gradient_checkpointing
        unused = not (is_pretrained_model(model) and (checkpoints or _checkpoints_activations(model)))
    settings = {"find_unused_parameters": unused}
    for field, keyword in _DDP_FIELDS.items():
        if getattr(args, field) is not None:
            settings[keyword] = getattr(args, field)
    return settings | given


def _checkpoints_activations(model: Any) -> bool:
    name = "is_activation_checkpointing" if hasattr(model, "is_activation_checkpointing") else None
    return bool(getattr(model, name or "is_gradient_checkpointing", False))


def ddp_strategy(placement: Placement, args: Any, model: nn.Module) -> DDPStrategy:
    """Return the strategy of one run from placement, arguments and model."""
    return DDPStrategy(placement, args.device, ddp_settings(args, model, placement.settings), placement.hooks)
