"""Context parallelism: the inputs of one batch whose sequences ranks share, and whole outputs made of their parts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from hf_compat.accelerator.gathering import gather_outputs
from hf_compat.data.sequence_shards import shifted_labels
from hf_compat.engine.parallel_mesh import CONTEXT_PARALLEL
from hf_compat.engine.ring_attention import whole_sequences
from hf_compat.errors import DataError
from hf_compat.nested import Nested, map_nested
from hf_compat.overriding import check_returned

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["Shared", "gather_whole", "prepared", "share", "whole"]

_SHARED = ("input_ids", "labels", "shift_labels", "attention_mask", "position_ids")
"""The inputs with a place for each token."""

Shared: TypeAlias = tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]
"""A function that returns a context, and the inputs of a batch."""


def prepared(trainer: Trainer, model: nn.Module, inputs: dict[str, Any]) -> Shared:
    """Return what the Trainer's ``_prepare_context_parallel_inputs`` returns for one batch.

    Raises:
        OverrideError: If that is no pair of a function and a batch.
    """
    returned: Any = trainer._prepare_context_parallel_inputs(model, inputs)
    if type(returned) is not tuple or len(returned) != 2 or returned[0] is not contextlib.nullcontext:
        fits = isinstance(returned, tuple | list) and len(returned) == 2 and callable(returned[0])
        wanted = "a function that returns a context manager, and the batch: `return contextlib.nullcontext, inputs`"
        check_returned(fits, returned, "_prepare_context_parallel_inputs", wanted)
    context, inputs = returned
    return context, inputs


def share(trainer: Trainer, inputs: dict[str, Any]) -> Shared:
    """Return a context for one batch, and the batch; inside the context it has this rank's parts of the sequences.

    The tensors of ``inputs`` stay whole. ``shift_labels`` and ``position_ids`` are added, as a rank has neither the
    label of the token after its last one nor the places of its tokens.

    References:
        Same inputs as transformers' ``Trainer._prepare_context_parallel_inputs``.

    Raises:
        DataError: If the sequences cannot be shared.
    """
    size = trainer.get_cp_size()
    if size == 1:
        return contextlib.nullcontext, inputs
    _check(inputs, size)
    inputs = dict(inputs)
    if inputs.get("shift_labels") is None and inputs.get("labels") is not None:
        inputs["shift_labels"] = shifted_labels(inputs["labels"])
    tokens = inputs["input_ids"]
    if inputs.get("position_ids") is None:
        inputs["position_ids"] = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    shared = [name for name in _SHARED if inputs.get(name) is not None and inputs[name].ndim == 2]
    for name in shared:  # the context writes to its buffers
        inputs[name] = inputs[name].clone(memory_format=torch.contiguous_format)
    buffers = [inputs[name] for name in shared]
    context = functools.partial(
        trainer.accelerator.maybe_context_parallel,
        buffers=buffers,
        buffer_seq_dims=[1] * len(buffers),
        no_restore_buffers=set(buffers),
    )
    return context, inputs


def _check(inputs: dict[str, Any], size: int) -> None:
    """Raise if the sequences of ``inputs`` cannot be shared by ``size`` ranks, or have a mask that is not causal."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2:
        raise DataError(
            f"`data_collator`: a batch has no `input_ids` of shape (batch, tokens), which `cp_size={size}` requires. "
            "Add them, or remove `cp_size`."
        )
    length = tokens.shape[1]
    if length % size:
        raise DataError(
            f"`data_collator`: sequences of {length} tokens cannot be shared out over `cp_size={size}` ranks. Pad them "
            f"to a multiple of {2 * size}, for instance by the collator's `pad_to_multiple_of`: with a multiple of "
            f"{size} alone the ranks have unequally much to compute."
        )
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim > 2 and not _is_causal(mask):
        raise DataError(
            f"`data_collator`: the `attention_mask` of shape {tuple(mask.shape)} is not causal, but `cp_size={size}` "
            "only supports causal attention masks. Remove it from the batches."
        )


def _is_causal(mask: Tensor) -> bool:
    """Return whether ``mask``, ``(batch, ..., tokens, tokens)``, hides from each token those after it.

    Of 0 and 1, or added to the scores; the first of the batch stands for all, as in transformers.
    """
    after = mask.flatten(0, -3)[0].triu(1)
    return bool((after <= 1e-6).all())


def gather_whole(trainer: Trainer) -> Callable[[Any], Any] | None:
    """Return what gathers outputs that :func:`whole` has made the same on ranks; None without context parallelism."""
    layout, accelerator = trainer.lightning_backend.process_layout, trainer.accelerator
    if layout.sizes.cp == 1:
        return None
    return functools.partial(
        gather_outputs,
        layout=layout,
        state=accelerator.gradient_state,
        of_parts=False,
        use_gather_object=trainer.args.eval_use_gather_object,
    )


def whole(trainer: Trainer, inputs: dict[str, Any], outputs: Nested) -> Nested:
    """Return ``outputs`` with the whole sequences of all ranks' parts in their second dimension; every rank calls it.

    Args:
        trainer: The Trainer.
        inputs: The batch, with whole sequences.
        outputs: What the model has returned for this rank's parts.
    """
    size, mesh = trainer.get_cp_size(), trainer.lightning_backend.process_layout.mesh
    if size == 1 or mesh is None:
        return outputs
    length = inputs["input_ids"].shape[1] // size

    def join(leaf: object) -> object:
        has_part = isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.shape[1] == length
        return whole_sequences(mesh[CONTEXT_PARALLEL], leaf) if has_part else leaf  # type: ignore[arg-type]

    joined: Nested = map_nested(join, outputs)
    return joined
