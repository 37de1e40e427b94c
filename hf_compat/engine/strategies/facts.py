"""What is known of each strategy by its name alone, before there is one: a row per name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hf_compat.engine.strategies.deepspeed.limits import deepspeed_limits
from hf_compat.engine.strategies.fsdp.limits import fsdp_limits

__all__ = ["STRATEGY_FACTS", "Limits", "StrategyFacts", "no_limits"]


class Limits(Protocol):
    """Tells what is wrong with a Trainer under one strategy, a sentence each; nothing if it can be trained."""

    def __call__(self, args: Any, *, model: Any, has_optimizers: bool, precision: Any, settings: Any) -> list[str]:
        """Return them, from what the Trainer was constructed with.

        Args:
            args: The training arguments.
            model: The model; None if it is yet to be made.
            has_optimizers: Whether an optimizer or a schedule was passed in.
            precision: Lightning's precision plugin.
            settings: How FSDP shards the model; None without it.
        """


def no_limits(args: Any, *, model: Any, has_optimizers: bool, precision: Any, settings: Any) -> list[str]:
    """Return nothing: the strategy can do all that a Trainer can."""
    return []


def _keeps_dtype(args: Any) -> torch.dtype | None:
    return None


def _never(args: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class StrategyFacts:
    """What the rest of the Trainer has to know of a strategy; the defaults are those of one device."""

    shards_model: bool = False
    """A rank holds a part of the model: a checkpoint's weights are loaded once it is wrapped."""
    places_model: bool = True
    """The Trainer moves the model to its device; otherwise the strategy does, part by part."""
    has_engine: bool = False
    """An engine owns weights, optimizer and schedule: they end with it, and ``resume_engine`` loads them together."""
    own_precision: bool = False
    """The engine computes in a precision of its own: no gradient scaler, no autocast around the loss."""
    saves_in_background: bool = False
    """Each rank has the full state dicts, so that one can write them while training goes on."""
    recounts_parameters: bool = False
    """How many parameters a rank holds changes from batch to batch."""
    flat_shards: bool = False
    """Gradients are sharded as flat parameters: a gradient scaler asks all ranks whether one is infinite."""
    input_dtype: Callable[[Any], torch.dtype | None] = _keeps_dtype
    """Training arguments to the dtype that floating-point inputs are cast to; None leaves them as they are."""
    shards_as_it_loads: Callable[[Any], bool] = _never
    """Training arguments to whether ``from_pretrained`` leaves each rank a part: saving needs the strategy then."""
    limits: Limits = no_limits
    """What a Trainer cannot do under the strategy; called with what it was constructed with."""


def _engine_dtype(args: Any) -> torch.dtype | None:
    dtype: torch.dtype = args.hf_deepspeed_config.dtype()
    return dtype


def _is_zero3(args: Any) -> bool:
    return bool(args.hf_deepspeed_config.is_zero3())


STRATEGY_FACTS: dict[str, StrategyFacts] = {
    "one device": StrategyFacts(saves_in_background=True),
    "ddp": StrategyFacts(saves_in_background=True),
    "fsdp1": StrategyFacts(shards_model=True, places_model=False, flat_shards=True, limits=fsdp_limits),
    "fsdp2": StrategyFacts(shards_model=True, places_model=False, limits=fsdp_limits),
    "tensor parallel": StrategyFacts(shards_model=True, places_model=False, limits=fsdp_limits),
    "deepspeed": StrategyFacts(
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
"""``Placement.strategy`` to its facts."""
