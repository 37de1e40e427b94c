"""``TrainingArguments`` as dict, JSON and text."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.accelerator_config import AcceleratorConfig

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["as_text", "plain_fields", "sanitized_fields"]

_PLAIN_TYPES = (bool, int, float, str)


def _masked(name: str, value: object) -> object:
    """Return ``value``, or a placeholder for a token."""
    return f"<{name.upper()}>" if name.endswith("_token") else value


def _plain(name: str, value: object) -> object:
    """Return ``value`` with enums and config objects replaced by plain values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list) and value and isinstance(value[0], Enum):
        return [item.value for item in value]
    if isinstance(value, AcceleratorConfig):
        settings = value.to_dict()
        settings.pop("use_configured_state", None)  # upstream has removed it by then
        return settings
    if name == "parallelism_config" and value is not None:
        return value.to_json() if hasattr(value, "to_json") else value
    if name == "model_init_kwargs" and isinstance(value, dict):
        quantization: Any = value.get("quantization_config")
        if hasattr(quantization, "to_dict"):
            return {**value, "quantization_config": quantization.to_dict()}
    return value


def _with_named_dtypes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with torch dtypes under the key ``dtype`` as strings, at any depth."""
    named = {key: _with_named_dtypes(value) if isinstance(value, dict) else value for key, value in settings.items()}
    dtype = named.get("dtype")
    if dtype is not None and not isinstance(dtype, str):
        named["dtype"] = str(dtype).split(".")[1]
    return named


def plain_fields(args: TrainingArguments) -> dict[str, Any]:
    """Return the fields as JSON-serializable values; tokens are masked."""
    given = {item.name: getattr(args, item.name) for item in fields(args) if item.init}
    return _with_named_dtypes({name: _masked(name, _plain(name, value)) for name, value in given.items()})


def sanitized_fields(args: TrainingArguments) -> dict[str, Any]:
    """Return ``args.to_dict()`` with the batch sizes; all but numbers, strings and tensors as strings."""
    torch = sys.modules.get("torch")
    kept = (*_PLAIN_TYPES, torch.Tensor) if torch is not None else _PLAIN_TYPES
    sizes = {"train_batch_size": args.train_batch_size, "eval_batch_size": args.eval_batch_size}
    merged = {**args.to_dict(), **sizes}
    return {name: value if type(value) in kept else str(value) for name, value in merged.items()}


def as_text(args: TrainingArguments) -> str:
    """Return a line for each field, sorted by name; tokens are masked."""
    lines = "".join(f"{name}={_masked(name, value)},\n" for name, value in sorted(asdict(args).items()))
    return f"{type(args).__name__}(\n{lines})"
