"""Reading the keyword ``strategy`` of ``lightning.Trainer``: a name, a DeepSpeed config, plugins of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import DeepSpeedStrategy, Strategy, StrategyRegistry

from hf_compat.distributed.processes import import_deepspeed
from hf_compat.engine.internals.strategies import (
    DEEPSPEED_NAMES,
    parse_deepspeed_strategy,
    parts_of_strategy,
    plain_class,
)
from hf_compat.engine.keywords import user_plugins
from hf_compat.engine.strategy_options import refused_options
from hf_compat.engine.strategy_table import NAMES

__all__ = ["deepspeed_meant", "strategy_spelled_out"]

_KINDS: dict[str, type] = {
    "checkpoint_io": CheckpointIO,
    "cluster_environment": ClusterEnvironment,
    "precision_plugin": Precision,
}
"""Argument of a strategy → the kind of plugin that it is."""


def strategy_spelled_out(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return ``keywords`` with what ``strategy`` stands for, and why that cannot be.

    As in Lightning a name may be in capitals, or one that a user has registered with `StrategyRegistry`, and plugins
    may be handed to a strategy.
    """
    meant, strategy = dict(keywords), keywords.get("strategy")
    if isinstance(strategy, str):
        strategy = strategy.lower()
        if strategy not in NAMES and strategy in StrategyRegistry:
            strategy = StrategyRegistry.get(strategy)
        meant["strategy"] = strategy
    if not isinstance(strategy, Strategy):
        return meant, []
    skipped = refused_options(plain_class(strategy).__name__)  # there is an error when the strategy is read
    parts = {name: part for name, part in parts_of_strategy(strategy).items() if name not in skipped}
    plugins = user_plugins(keywords)
    problems = [
        f"`lightning={{'strategy': {type(strategy).__name__}({name}=...), 'plugins': [{type(other).__name__}]}}` both "
        f"set the {name.replace('_', ' ')}: choose one of them."
        for name in parts
        for other in plugins
        if isinstance(other, _KINDS[name])
    ]
    if parts:
        meant["plugins"] = [*plugins, *parts.values()]
    return meant, problems


def deepspeed_meant(strategy: object, *, use_cpu: bool) -> dict[str, Any] | None:
    """Return the DeepSpeed config that the keyword ``strategy`` stands for; None if it is another strategy.

    Args:
        strategy: The user's strategy, a name or an instance.
        use_cpu: Whether the run is on the CPU, whatever devices there are; DeepSpeed detects its device on import.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    if isinstance(strategy, str) and strategy in DEEPSPEED_NAMES:
        import_deepspeed(torch.device("cpu" if use_cpu else "cuda"))
        strategy = StrategyRegistry.get(strategy)
    return parse_deepspeed_strategy(strategy) if isinstance(strategy, DeepSpeedStrategy) else None
