"""NEFTune: uniform noise on the input embeddings during training (https://arxiv.org/abs/2310.05914)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hf_compat.errors import UntrainableModelError
from hf_compat.model_facts import unwrap_peft

__all__ = ["activate_neftune", "deactivate_neftune"]


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
