"""Liger kernels: fused Triton kernels in place of a model's layers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_compat.errors import require_package
from hf_compat.model_facts import unwrap_peft

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["apply_if_set", "apply_liger_kernels"]

logger = logging.getLogger(__name__)


def apply_if_set(model: nn.Module, args: TrainingArguments) -> None:
    """Apply the kernels that ``liger_kernel_config`` chooses, under ``use_liger_kernel``; see the next function."""
    if args.use_liger_kernel:
        apply_liger_kernels(model, args.liger_kernel_config)


def apply_liger_kernels(model: nn.Module, switches: dict[str, Any] | None = None) -> None:
    """Replace the layers of ``model`` that liger-kernel has fused kernels for.

    A model that is not transformers', or of an architecture that liger-kernel does not support, is not changed; a log
    says so.

    Args:
        model: A transformers model, or peft's wrapper around one; changed in place.
        switches: Which kernels to use, such as ``{"rope": False}``. Default: liger-kernel's choice.

    Raises:
        MissingPackageError: If liger-kernel or triton is not installed.
    """
    kernels = require_package("liger_kernel.transformers", extra="liger", purpose="`use_liger_kernel=True`")
    pretrained = require_package("transformers", extra="liger", purpose="`use_liger_kernel=True`").PreTrainedModel
    base = unwrap_peft(model)
    if not isinstance(base, pretrained):
        logger.warning(
            "`use_liger_kernel=True`: No liger kernels will be applied, as %s is not a transformers model.", type(base)
        )
        return
    kernels._apply_liger_kernel_to_instance(model=base, **(switches or {}))
