"""Values of fields that depend on a release, of torch or of the reproduced transformers."""

from __future__ import annotations

import math
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.version import Version

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.semantics import resolve_semantics

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["SINCE", "default_optimizer", "warmup_update_steps"]

_FUSED_ADAMW_IS_DEFAULT = (2, 8)

SINCE: dict[str, Version] = {
    "balances_batches": Version("5.17"),
    "drops_logging_dir": Version("5.0"),
    "drops_warmup_ratio": Version("5.0"),
    "drops_sigopt": Version("5.0"),
    "leaves_local_rank": Version("5.0"),
    "leaves_model_placement_open": Version("5.2"),
    "makes_fsdp_a_switch": Version("5.10"),
    "names_main_process": Version("5.23"),
    "renames_gradient_checkpointing": Version("5.23"),
    "renames_group_by_length": Version("5.2"),
    "renames_past_key_values": Version("5.24"),
    "saves_safetensors_only": Version("5.0"),
}
"""Changes of arguments, enums and models that do not affect numbers, and the transformers release of each."""


def default_optimizer() -> str:
    """Return upstream's default for the installed torch, which is not imported."""
    try:
        installed = Version(metadata.version("torch")).release
    except metadata.PackageNotFoundError:
        return "adamw_torch"
    return "adamw_torch_fused" if installed >= _FUSED_ADAMW_IS_DEFAULT else "adamw_torch"


def warmup_update_steps(args: TrainingArguments, num_training_steps: int) -> int:
    """Return the update steps of warmup in a run of ``num_training_steps``; a fraction is rounded up.

    ``warmup_steps`` takes precedence over ``warmup_ratio``, the older field for a fraction.
    """
    args = for_run(args)
    steps = args.warmup_steps
    if steps >= 1 or (steps and not resolve_semantics(args.semantics).warmup_below_one_is_ratio):
        return int(steps)
    return math.ceil(num_training_steps * (steps or args.warmup_ratio or 0.0))
