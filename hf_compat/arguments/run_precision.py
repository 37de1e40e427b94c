"""The precision of a run: mixed precision, that of evaluations, and TF32 for the process."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Literal

from hf_compat.arguments.process_facts import uses_configured_state
from hf_compat.distributed.accelerate_state import configured_precision
from hf_compat.distributed.accelerators import lacks_tf32, set_tf32

if TYPE_CHECKING:
    from hf_compat.arguments.releases.semantics import Semantics
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "PRECISION_VARIABLE",
    "allow_tf32",
    "amp_backend",
    "full_evaluation_precision",
    "mixed_precision",
    "uses_cpu_amp",
]

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


def full_evaluation_precision(args: TrainingArguments) -> Literal["float16", "bfloat16"] | None:
    """Return the dtype in which a model is evaluated as a whole, None where its weights stay as they are."""
    if args.fp16_full_eval:
        return "float16"
    return "bfloat16" if args.bf16_full_eval else None


def amp_backend(args: TrainingArguments) -> str:
    """Return the name of the half precision backend that transformers 4.57 chooses for ``half_precision_backend``."""
    by_default = args.half_precision_backend == "auto"
    return "cpu_amp" if by_default and args.device.type == "cpu" and not args.fp16 else args.half_precision_backend


def uses_cpu_amp(args: TrainingArguments) -> bool:
    """Return whether transformers 4.57 has an autocast around the loss on the CPU.

    It has one if that is requested, and by default for ``bf16`` in a lone process.
    """
    if args.half_precision_backend == "auto":
        return args.bf16 and args.device.type == "cpu" and args.world_size == 1
    return args.half_precision_backend == "cpu_amp" and (args.fp16 or args.bf16)


def allow_tf32(args: TrainingArguments) -> None:
    """Set TF32 for the process, as upstream does: if the field is set, and for compiled models."""
    if args.tf32 is not None:
        if not lacks_tf32():
            set_tf32(args.tf32)
    elif args.torch_compile and lacks_tf32():
        logger.warning("The speedups for torchdynamo mostly come with GPU Ampere or higher, and this machine has none.")
    elif args.torch_compile and (args.bf16 or not args.fp16):
        set_tf32(True)
