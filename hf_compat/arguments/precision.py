"""The precision of a run: mixed precision, and TF32 for the process."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from hf_compat.arguments.process_facts import uses_configured_state
from hf_compat.distributed.accelerate_state import configured_precision
from hf_compat.distributed.devices import gpu_lacks_tf32, set_tf32

if TYPE_CHECKING:
    from hf_compat.arguments.releases.semantics import Semantics
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["PRECISION_VARIABLE", "allow_tf32", "mixed_precision"]

logger = logging.getLogger(__name__)

PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"
"""Set by ``accelerate launch --mixed_precision``; used if neither ``fp16`` nor ``bf16`` is set."""


def mixed_precision(args: TrainingArguments, semantics: Semantics) -> str:
    """Return ``"fp16"``, ``"bf16"`` or ``"no"``: from the fields, the script's own state, or the launcher."""
    if args.fp16:
        return "fp16"
    if args.bf16:
        return "bf16"
    adopts = uses_configured_state(args) and not semantics.compares_configured_precision
    adopted = configured_precision() if adopts else None
    return adopted or os.environ.get(PRECISION_VARIABLE, "no")


def allow_tf32(args: TrainingArguments) -> None:
    """Set TF32 for the process, as upstream does: if the field is set, and for compiled models."""
    if args.tf32 is not None:
        if not gpu_lacks_tf32():
            set_tf32(args.tf32)
    elif args.torch_compile and gpu_lacks_tf32():
        logger.warning("The speedups for torchdynamo mostly come with GPU Ampere or higher, and this machine has none.")
    elif args.torch_compile and (args.bf16 or not args.fp16):
        set_tf32(True)
