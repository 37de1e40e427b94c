"""Tracing a model with ``torch.jit`` for evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hf_compat.engine.precision import without_autocast

__all__ = ["trace_model"]

_WARM_UP_PASSES = 2  # torch.jit optimises in the first passes; evaluation is timed without them


def trace_model(model: nn.Module, example: Mapping[str, Any], *, mixed_precision: str, device: torch.device) -> Any:
    """Return ``model`` traced with ``example`` in evaluation mode, and frozen.

    Args:
        model: The model; it is not changed, and later changes of its weights do not affect the trace.
        example: One batch: keyword arguments of the forward, of which the trace takes the same.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``: autocast of the trace.
        device: Device of the model.

    Raises:
        RuntimeError: If the model cannot be traced; torch may also raise IndexError, NameError, TypeError, ValueError.

    References:
        As transformers 4.57 ``Trainer.torch_jit_model_eval``.
    """
    traced = without_autocast(copy.copy(model))
    traced.eval()
    context: AbstractContextManager[Any] = nullcontext()
    if mixed_precision != "no":
        # The weight cache would make casted weights constants of the trace.
        dtype = torch.bfloat16 if mixed_precision == "bf16" else torch.float16
        context = torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    with context, torch.no_grad():
        program = torch.jit.trace(traced, example_kwarg_inputs=dict(example), strict=False)  # type: ignore[no-untyped-call]
    program = torch.jit.freeze(program)
    with torch.no_grad():
        for _ in range(_WARM_UP_PASSES):
            program(**example)
    return program
