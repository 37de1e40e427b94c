"""The length of warmup, which releases write in different ways."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.semantics import resolve_semantics

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["warmup_update_steps"]


def warmup_update_steps(args: TrainingArguments, num_training_steps: int) -> int:
    """Return the update steps of warmup in a run of ``num_training_steps``; a fraction is rounded up.

    ``warmup_steps`` takes precedence over ``warmup_ratio``, the older field for a fraction.
    """
    args = for_run(args)
    steps = args.warmup_steps
    if steps >= 1 or (steps and not resolve_semantics(args.semantics).warmup_below_one_is_ratio):
        return int(steps)
    return math.ceil(num_training_steps * (steps or args.warmup_ratio or 0.0))
