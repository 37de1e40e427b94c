"""Tells when ``gradient_accumulation_steps`` changes while a run trains, whose update steps are planned already."""

from __future__ import annotations

from hf_compat.overriding import WarnOnce
from hf_compat.run.host import RunHost

__all__ = ["warn_of_changed_accumulation"]


def warn_of_changed_accumulation(host: RunHost, warn_once: WarnOnce) -> None:
    """Warn, once per Trainer, if the arguments have another number of accumulated batches than the plan."""
    assert host.run_plan is not None, "a fit has a plan"
    planned, now = host.run_plan.accumulate, host.args.gradient_accumulation_steps
    if now != planned:
        warn_once(
            f"`gradient_accumulation_steps` was changed from {planned} to {now} during training. This run keeps "
            f"{planned}: its update steps were planned when it started. Change it before `train`, or stop the run and "
            "resume it with the new value."
        )
