"""The best evaluation of a run, as the fields define it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.arguments.releases.semantics import Semantics

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["is_better", "notes_best_step", "worst_value"]


def is_better(args: TrainingArguments, value: float, than: float) -> bool:
    """Return whether ``value`` of the metric is strictly better ``than`` another."""
    return bool(value > than if args.greater_is_better else value < than)


def worst_value(args: TrainingArguments) -> float:
    """Return the value of the metric than which all others are better."""
    return float("-inf") if args.greater_is_better else float("inf")


def notes_best_step(args: TrainingArguments, semantics: Semantics) -> bool:
    """Return whether the state has the update step of the best evaluation: where checkpoints are saved."""
    noted = ("steps", "epoch", "best") if semantics.best_strategy_sets_best_step else ("steps", "epoch")
    return args.save_strategy in noted
