"""Properties of each strategy that are known by its name, before it is created, and what it does not support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hf_compat.arguments.deepspeed.requested import config_in_use
from hf_compat.arguments.parallelism import ParallelSizes
from hf_compat.engine.strategies.limits import (
    data_parallel_limits,
    deepspeed_limits,
    fsdp_limits,
    presharded_limits,
)

if TYPE_CHECKING:
    from lightning.pytorch.plugins.precision import Precision
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.fsdp.settings import FsdpSettings

__all__ = ["STRATEGY_TRAITS", "StrategyRequest", "StrategyTraits"]


@dataclass(frozen=True, slots=True)
class StrategyRequest:
    """The arguments of a Trainer that a strategy may not support."""

    args: TrainingArguments
    """The training arguments."""
    model: nn.Module | None
    """The model; None if ``model_init`` has not been called yet."""
    has_optimizers: bool
    """Whether an optimizer or a schedule was passed to the Trainer."""
    precision: Precision
    """Lightning's precision plugin."""
    fsdp: FsdpSettings | None
    """How FSDP shards the model; None without FSDP."""
    sizes: ParallelSizes
    """The sizes of the device mesh; all 1 without one."""


def _none(request: StrategyRequest) -> list[str]:
    return []


def _keeps_dtype(args: TrainingArguments) -> torch.dtype | None:
    return None


def _never(args: TrainingArguments) -> bool:
    return False


def _always(args: TrainingArguments) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class StrategyTraits:
    """Properties of a strategy; the defaults are those of a single device."""

    shards_model: bool = False
    """The model is sharded: a checkpoint's weights are loaded after it is wrapped."""
    places_model: bool = True
    """The Trainer moves the model to its device; otherwise the strategy does, unit by unit."""
    has_engine: bool = False
    """An engine owns weights, optimizer and schedule; ``resume_engine`` loads them together."""
    own_precision: bool = False
    """The engine handles mixed precision: no gradient scaler, no autocast around the loss."""
    own_casts: bool = False
    """The strategy casts parameters, inputs and outputs for mixed precision: no autocast around the forward pass."""
    recounts_parameters: bool = False
    """The number of parameters on a rank changes from batch to batch."""
    flat_shards: bool = False
    """Gradients are shards of flat parameters: the gradient scaler checks for infinite ones on all ranks."""
    input_dtype: Callable[[TrainingArguments], torch.dtype | None] = _keeps_dtype
    """Training arguments → dtype that floating-point inputs are cast to; None for no cast."""
    groups_by_mesh: bool = False
    """The optimizer's parameter groups are divided by device mesh, since its kernels are for tensors of one."""
    shards_as_it_loads: Callable[[TrainingArguments], bool] = _never
    """Training arguments → whether ``from_pretrained`` shards the model, so that saving needs the strategy."""
    limits: Callable[[StrategyRequest], list[str]] = _none
    """Request of a Trainer → a message for each of its arguments that is not supported."""


def _engine_dtype(args: TrainingArguments) -> torch.dtype | None:
    return config_in_use(args).dtype()


def _is_zero3(args: TrainingArguments) -> bool:
    return bool(config_in_use(args).is_zero3())


STRATEGY_TRAITS: dict[str, StrategyTraits] = {
    "one device": StrategyTraits(),
    "data parallel": StrategyTraits(limits=data_parallel_limits),
    "ddp": StrategyTraits(),
    "fsdp1": StrategyTraits(shards_model=True, places_model=False, flat_shards=True, limits=fsdp_limits),
    "fsdp2": StrategyTraits(shards_model=True, places_model=False, own_casts=True, limits=fsdp_limits),
    "tensor parallel": StrategyTraits(shards_model=True, places_model=False, limits=fsdp_limits),
    "presharded": StrategyTraits(
        shards_model=True,
        places_model=False,
        groups_by_mesh=True,
        shards_as_it_loads=_always,
        limits=presharded_limits,
    ),
    "deepspeed": StrategyTraits(
        shards_model=True,
        places_model=False,
        has_engine=True,
        own_precision=True,
        recounts_parameters=True,
        input_dtype=_engine_dtype,
        shards_as_it_loads=_is_zero3,
        limits=deepspeed_limits,
    ),
}
"""``ProcessLayout.strategy`` → its properties."""
