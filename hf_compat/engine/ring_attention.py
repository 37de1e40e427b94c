"""Context parallelism: sequences shared by ranks, each of which attends over whole ones by torch's ring attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.hooks import RemovableHandle

from hf_compat.arguments.sequence_parallelism import Rotation

_ATTENTION = "sdpa"
_FULL = "full_attention"


@contextmanager
def shared_sequences(
    mesh: DeviceMesh, rotation: Rotation, buffers: list[Tensor], dims: list[int], unrestored: set[Tensor]
) -> Iterator[None]:
    """Context in which this rank has its part of ``buffers``, and attends to the parts of all ranks of ``mesh``.

    A part is the beginning of a sequence and as much of its end, or more of its middle for the ranks that follow, so
    that under causal attention all have equally much to compute; or it is in one piece, if the length is not a multiple
    of twice the number of ranks.

    Args:
        mesh: The ranks that share sequences.
        rotation: How they exchange keys and values.
        buffers: Tensors of whole sequences, which are changed in place.
        dims: Each one's dimension of the tokens.
        unrestored: Those that keep this rank's part after the context.
    """
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method(rotation)
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=unrestored):
        yield


def whole_sequences(mesh: DeviceMesh, part: Tensor) -> Tensor:
    """Return the sequences of which each rank of ``mesh`` has a part, ``(batch, tokens, ...)``; every rank calls it."""
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    (whole,) = context_parallel_unshard(mesh, [part], [1])
    return whole


def drop_masks(model: nn.Module) -> list[RemovableHandle]:
    """Have the attention layers of ``model`` be causal without a mask, which ring attention does not take.

    Returns:
        The hooks that do.

    References:
        Same layers as accelerate ``big_modeling.py`` ``_attach_context_parallel_hooks``: those named ``self_attn``.
    """
    layers = [module for name, module in model.named_modules() if name.endswith("self_attn")]
    return [layer.register_forward_pre_hook(_without_mask, with_kwargs=True, prepend=True) for layer in layers]


def _without_mask(
    layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if "attention_mask" not in named:
        return None
    return args, {**named, "attention_mask": None, "is_causal": True}


def context_parallel_limits(size: int, model: nn.Module | None) -> Iterator[str]:
    """Yield why ``size`` ranks cannot share the sequences of ``model``.

    Args:
        size: The context-parallel size.
        model: The model; None if ``model_init`` has not been called yet.
    """
    config: Any = getattr(model, "config", None)
    if size == 1 or config is None:
        return
    name = type(model).__name__
    attention = getattr(config, "_attn_implementation", _ATTENTION)
    if attention != _ATTENTION:
        yield (
            f"`model`: the attention of {name} is {attention!r}, but context parallelism (`cp_size={size}`) is "
            f"supported only with SDPA attention. Load the model with `attn_implementation={_ATTENTION!r}`."
        )
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention"] if getattr(text, "sliding_window", None) else []
    others = sorted(set(kinds) - {_FULL})
    if others:
        yield (
            f"`model`: {name} has layers of type {', '.join(others)}, but with `cp_size={size}` each token attends to "
            "all tokens before it: their mask would be dropped. Use a model with full attention, or remove `cp_size`."
        )
