"""Tells when ``gradient_accumulation_steps`` changes while a run trains, whose update steps are planned already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.overriding import WarnOnce

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["warn_of_changed_accumulation"]


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
