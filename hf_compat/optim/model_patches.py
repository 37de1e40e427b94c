"""Changes of a model for its training: Liger's fused kernels, and NEFTune's noise on the embeddings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hf_compat.errors import UntrainableModelError, require_package
from hf_compat.model_facts import unwrap_peft

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

logger = logging.getLogger(__name__)


# Liger kernels: fused Triton kernels in place of a model's layers.


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


# NEFTune: uniform noise on the input embeddings during training (https://arxiv.org/abs/2310.05914).


def _add_noise(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """Forward hook: return embeddings, ``(batch, sequence, width)``, with noise; None, so unchanged, in eval mode."""
    if not module.training:
        return None
    # In float32, as in transformers: Python's floats round the bound differently.
    root = torch.sqrt(torch.tensor(output.size(1) * output.size(2), device="cpu"))
    alpha: Any = module.neftune_noise_alpha
    bound = (alpha / root).item()
    return output + torch.zeros_like(output).uniform_(-bound, bound)


def _input_embeddings(model: nn.Module) -> nn.Module:
    base: Any = unwrap_peft(model)
    if not callable(getattr(base, "get_input_embeddings", None)):
        raise UntrainableModelError(
            f"`neftune_noise_alpha` needs a model with `get_input_embeddings()`, but {type(base).__name__} has none: "
            "define it, or remove `neftune_noise_alpha`."
        )
    embeddings: nn.Module = base.get_input_embeddings()
    return embeddings


def activate_neftune(model: nn.Module, alpha: float) -> RemovableHandle:
    """Add noise to ``model``'s input embeddings in every forward pass in train mode; return the hook's handle.

    The noise is uniform in +/- ``alpha / sqrt(sequence length * width)``. The embedding module gets the attribute
    ``neftune_noise_alpha``, which may be changed between forward passes.

    Args:
        model: A model with ``get_input_embeddings``, or peft's wrapper around one.
        alpha: Magnitude of the noise, 5 to 15 in the paper.

    Raises:
        UntrainableModelError: If the model has no ``get_input_embeddings``.

    References:
        Same noise as transformers ``integrations/neftune.py``.
    """
    embeddings = _input_embeddings(model)
    embeddings.neftune_noise_alpha = alpha  # type: ignore[assignment]
    return embeddings.register_forward_hook(_add_noise)


def deactivate_neftune(model: nn.Module, handle: RemovableHandle) -> None:
    """Undo :func:`activate_neftune`, which returned ``handle``."""
    handle.remove()
    embeddings = _input_embeddings(model)
    if hasattr(embeddings, "neftune_noise_alpha"):
        del embeddings.neftune_noise_alpha
