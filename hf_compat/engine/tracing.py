"""A model traced by ``torch.jit`` for evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hf_compat.engine.precision import without_autocast

__all__ = ["trace_model"]

_WARM_UP_PASSES = 2  # the executor optimises on the first passes; measured times start after them


def trace_model(model: nn.Module, example: Mapping[str, Any], *, mixed_precision: str, device: torch.device) -> Any:
    """Return ``model`` as a frozen program: what its forward did with ``example``, recorded, in evaluation mode.

    Args:
        model: The model; it stays as it is, and the program does not follow its later weights.
        example: One batch, keyword arguments of the forward; the program takes the same names.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``; what the program computes in.
        device: Where the model is.

    Raises:
        RuntimeError: If the model cannot be traced; torch may also raise IndexError, NameError, TypeError, ValueError.

    References:
        As transformers 4.57 ``Trainer.torch_jit_model_eval``.
    """
    traced = without_autocast(copy.copy(model))
    traced.eval()
    context: AbstractContextManager[Any] = nullcontext()
    if mixed_precision != "no":
        # Without the cache: casts of weights would be recorded as constants.
        dtype = torch.bfloat16 if mixed_precision == "bf16" else torch.float16
        context = torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    with context, torch.no_grad():
        program = torch.jit.trace(traced, example_kwarg_inputs=dict(example), strict=False)  # type: ignore[no-untyped-call]
    program = torch.jit.freeze(program)
    with torch.no_grad():
        for _ in range(_WARM_UP_PASSES):
            program(**example)
    return program
