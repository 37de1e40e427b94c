"""Compiled models, as the fields describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["CompileKeywords", "compile_keywords"]


class CompileKeywords(TypedDict):
    """Keywords of ``torch.compile``."""

    backend: str
    mode: str | None


def compile_keywords(args: TrainingArguments) -> CompileKeywords | None:
    """Return the keywords with which models are compiled; None if they are not."""
    if not args.torch_compile:
        return None
    return {"backend": args.torch_compile_backend or "inductor", "mode": args.torch_compile_mode}
