"""Warnings of a run: epochs that a data set is not told, and accumulation that changes while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.overriding import WarnOnce

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["warn_of_changed_accumulation", "warn_of_untold_epochs"]


def warn_of_untold_epochs(loader: object, rest: object, semantics: Semantics, warn_once: WarnOnce) -> None:
    """Warn if the data set behind ``loader`` has a ``set_epoch`` that is not called in each epoch.

    Args:
        loader: The train loader.
        rest: The loader of the rest of a resumed epoch; ``loader`` in others.
        semantics: The release whose calls are reproduced.
        warn_once: Warns.
    """
    if _leaves_out(loader):
        where = "on several processes"
    elif _leaves_out(rest) and semantics.skips_before_telling_epoch:
        where = "in an epoch that is resumed in the middle"
    else:
        return
    warn_once(
        f"`train_dataset` has a `set_epoch`, which transformers {semantics.release} does not call {where}; neither "
        "does this run. Set `TrainingArguments(semantics='corrected')` to have it called in every epoch."
    )


def _leaves_out(loader: object) -> bool:
    return isinstance(loader, PreparedDataLoader) and hasattr(loader.dataset, "set_epoch") and not loader.tells_dataset


def warn_of_changed_accumulation(trainer: Trainer, warn_once: WarnOnce) -> None:
    """Warn, once per Trainer, if the arguments have another number of accumulated batches than the plan."""
    assert trainer.run_plan is not None, "a fit has a plan"
    planned, now = trainer.run_plan.accumulate, trainer.args.gradient_accumulation_steps
    if now != planned:
        warn_once(
            f"`gradient_accumulation_steps` was changed from {planned} to {now} during training. This run keeps "
            f"{planned}: its update steps were planned when it started. Change it before `train`, or stop the run and "
            "resume it with the new value."
        )
