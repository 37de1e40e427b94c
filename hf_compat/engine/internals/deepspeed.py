"""The names of Lightning's ``DeepSpeedStrategy`` that hf_compat uses, with the contract it relies on."""

from __future__ import annotations

import copy
from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy, StrategyRegistry

__all__ = ["DEEPSPEED_NAMES", "parse_deepspeed_strategy"]

DEEPSPEED_NAMES = tuple(name for name, row in StrategyRegistry.items() if row["strategy"] is DeepSpeedStrategy)
"""Lightning's names of ``DeepSpeedStrategy`` with its options."""

_FOLLOWS_ARGUMENTS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
"""Keys that Lightning fills in from its trainer, and a run from the training arguments."""
_LOSS_SCALE = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")


def parse_deepspeed_strategy(strategy: DeepSpeedStrategy) -> dict[str, Any]:
    """Return the DeepSpeed config of the user's ``strategy``, with ``"auto"`` for what the training arguments say.

    Contract: Lightning's ``DeepSpeedStrategy`` makes ``config`` of its arguments in the constructor, or takes the
    user's; in a set-up it adds batch size, accumulation and clipping of its trainer, and a section for the precision
    with the loss-scaling options, which are attributes of their names.
    """
    config: dict[str, Any] = copy.deepcopy(strategy.config)  # type: ignore[arg-type]
    scaling = {name: getattr(strategy, name) for name in _LOSS_SCALE}
    return {
        "zero_optimization": {"stage": 0},
        **dict.fromkeys(_FOLLOWS_ARGUMENTS, "auto"),
        "fp16": {"enabled": "auto", **scaling},
        "bf16": {"enabled": "auto"},
        **config,
    }
