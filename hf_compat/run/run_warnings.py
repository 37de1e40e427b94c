"""Warnings of a run: epochs untold to a data set, changed accumulation, unfrozen parameters, a plateau below zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.overriding import WarnOnce

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.engine.strategies.traits import StrategyTraits
    from hf_compat.trainer.trainer import Trainer

__all__ = [
    "FrozenParameters",
    "warn_of_changed_accumulation",
    "warn_of_negative_plateau",
    "warn_of_untold_epochs",
]


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


def warn_of_negative_plateau(scheduler: object, metric: float, warn_once: WarnOnce) -> None:
    """Warn if ``scheduler`` is torch's plateau schedule and takes a value that is no better than ``metric`` for better.

    Args:
        scheduler: The schedule of the run.
        metric: What it is about to be stepped with.
        warn_once: Warns.
    """
    if isinstance(scheduler, ReduceLROnPlateau) and scheduler.threshold_mode == "rel" and metric < 0:
        warn_once(
            "The plateau schedule is stepped with a metric below 0, where its relative `threshold` counts the same "
            "value again, and a slightly worse one, as an improvement: the learning rate may never fall. Set "
            "`lr_scheduler_kwargs={'threshold_mode': 'abs'}`."
        )


class FrozenParameters:
    """The parameters that were frozen as the optimizer was created, which therefore may not have them.

    Args:
        warn_once: Warns.
    """

    def __init__(self, warn_once: WarnOnce) -> None:
        self._warn_once = warn_once
        self._names: frozenset[str] = frozenset()

    def remember(self, model: nn.Module, traits: StrategyTraits) -> None:
        """Note the frozen ones of ``model``; none where ``traits`` say that the optimizer may have other tensors."""
        if not (traits.has_engine or traits.shards_model):
            parameters = model.named_parameters()
            self._names = frozenset(name for name, parameter in parameters if not parameter.requires_grad)

    def warn_of_unfrozen(self, trainer: Trainer) -> None:
        """Warn if a callback has unfrozen one of them and the optimizer does not have it."""
        parameters = trainer.model.named_parameters() if self._names else ()
        unfrozen = {name: each for name, each in parameters if name in self._names and each.requires_grad}
        if not unfrozen:
            return
        groups = getattr(trainer.optimizer, "param_groups", ())  # None if the script has set it
        updated = {id(each) for group in groups for each in group["params"]}
        names = [name for name, each in unfrozen.items() if id(each) not in updated]
        if names:
            self._names = frozenset()
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._warn_once(
                f"Unfrozen during training: `{names[0]}`{others}. The optimizer was created without these parameters: "
                "as in transformers they are never updated, while their gradients count in `grad_norm` and in "
                "clipping by `max_grad_norm`. Unfreeze them before `train`, or with a `BaseFinetuning` callback of "
                "Lightning, which adds them to the optimizer."
            )
