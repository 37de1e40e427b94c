"""Reading the keyword ``strategy`` of ``lightning.Trainer``: a name, and plugins given to an instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import FSDPStrategy, Strategy, StrategyRegistry

from hf_compat.engine.internals.strategies import parts_of_strategy
from hf_compat.engine.keywords import user_plugins
from hf_compat.engine.strategy_table import NAMES

__all__ = ["strategy_spelled_out"]

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
    # Those of FSDP have settings for its wrapper and its files; whoever reads the strategy refuses them.
    skipped = ("checkpoint_io", "precision_plugin") if isinstance(strategy, FSDPStrategy) else ()
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
