"""Fused attention for the fake device, which has no such kernels: the same by ordinary operations.

On GPUs torch chooses a fused kernel in float32 where it can, and its ring attention takes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_KERNEL = "_scaled_dot_product_efficient_attention"
_LIBRARY = torch.library.Library("aten", "IMPL")


@contextmanager
def fused_attention() -> Iterator[None]:
    """Context in which ``scaled_dot_product_attention`` without a mask is the fused kernel, as on a GPU."""
    unfused = functional.scaled_dot_product_attention
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_KERNEL}", "CUDA"):
        _LIBRARY.impl(_KERNEL, _forward, "CUDA")
        _LIBRARY.impl(f"{_KERNEL}_backward", _backward, "CUDA")

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **named: Any,
    ) -> Tensor:
        if attn_mask is not None:
            return unfused(query, key, value, attn_mask, dropout_p, is_causal, **named)
        kernel = getattr(torch.ops.aten, _KERNEL)
        return kernel(query, key, value, None, True, dropout_p, is_causal, scale=named.get("scale"))[0]  # type: ignore[no-any-return]

    attend.__name__ = unfused.__name__  # by which torch puts ring attention in its place
    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = unfused


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    """Return the scores of each token for each other, ``(batch, heads, tokens, tokens)``, in float32."""
    scores = query.float() @ key.float().transpose(-2, -1) * _factor(query, scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    assert (bias, dropout_p) == (None, 0.0)
    scores = _scores(query, key, is_causal, scale)
    log_sums = torch.logsumexp(scores, -1)
    output = torch.exp(scores - log_sums[..., None]) @ value.float()
    seed, offset = torch.zeros(2, dtype=torch.int64)
    return output.to(query.dtype), log_sums, seed, offset


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    output: Tensor,
    log_sums: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    wanted: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    shares = torch.exp(_scores(query, key, is_causal, scale) - log_sums[..., None])
    grad = grad.float()
    of_shares = grad @ value.float().transpose(-2, -1) - (grad * output.float()).sum(-1, keepdim=True)
    of_scores = shares * of_shares * _factor(query, scale)
    grads = of_scores @ key.float(), of_scores.transpose(-2, -1) @ query.float(), shares.transpose(-2, -1) @ grad
    return (*(each.to(query.dtype) for each in grads), torch.zeros((), device=query.device))
