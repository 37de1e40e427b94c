"""Aligning the special tokens of a model's configuration with the tokenizer before training."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from hf_compat.arguments.releases import Semantics

logger = logging.getLogger(__name__)

_TOKENS = ("eos_token_id", "bos_token_id", "pad_token_id")


def align_special_tokens(model: nn.Module, processing_class: object, semantics: Semantics) -> None:
    """Set the special token ids in ``model``'s config and generation config to the tokenizer's where they differ.

    The generation config may have several end-of-sequence tokens: the tokenizer's is put first. Models without a config
    and processing classes without special tokens are not changed.

    References:
        As transformers' Trainer at the start of ``train`` since 4.56.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if not hasattr(model, "config") or not all(hasattr(tokenizer, name) for name in _TOKENS):
        return
    config: Any = model.config
    if semantics.keeps_tokens_undefined_by_tokenizer and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    generation: Any = getattr(model, "generation_config", None)
    if not semantics.keeps_tokens_undefined_by_tokenizer and isinstance(getattr(generation, "eos_token_id", None), int):
        generation.eos_token_id = [generation.eos_token_id]  # even if it is the tokenizer's
    changed = {}
    for name in _TOKENS:
        token = getattr(tokenizer, name)
        if token is None and semantics.keeps_tokens_undefined_by_tokenizer:
            continue
        if _align(name, token, config, generation):
            changed[name] = token
    if changed:
        logger.warning(
            "The tokenizer has new PAD/BOS/EOS tokens that differ from the model config: the config and the generation "
            "config were set to the tokenizer's: %s.",
            changed,
        )


def _align(name: str, token: int | None, config: object, generation: object) -> bool:
    """Set one token id; return whether anything differed."""
    in_config = _as_list(getattr(config, name, None))
    in_generation = _as_list(getattr(generation, name, None)) if generation is not None else [token]
    several = name == "eos_token_id"
    if token in in_config and token in in_generation:
        return False
    keeps_list = several and isinstance(getattr(config, name, None), list)
    setattr(config, name, [token, *(t for t in in_config if t != token)] if keeps_list else token)
    if generation is not None and several:
        kept = [token, *(t for t in in_generation if t != token)]
        setattr(generation, name, [t for t in kept if t is not None])
    elif generation is not None:
        setattr(generation, name, token)
    return True


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
