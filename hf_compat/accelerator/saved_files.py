"""``accelerator.save`` and ``accelerator.save_model``: files beside the checkpoints, written once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from hf_compat.checkpoint.weights import save_safetensors

__all__ = ["save_object", "save_shards"]


def save_object(value: object, path: str | os.PathLike[str], *, safe_serialization: bool) -> None:
    """Save ``value`` by ``torch.save``; with ``safe_serialization`` a dict of tensors as safetensors.

    Raises:
        CheckpointError: If safetensors cannot hold ``value``.
    """
    if safe_serialization:
        save_safetensors(value, path, of="`accelerator.save(obj, ..., safe_serialization=True)`: `obj`")
    else:
        torch.save(value, path)


def save_shards(
    state_dict: dict[str, Any], folder: str | os.PathLike[str], *, max_shard_size: int | str, safe_serialization: bool
) -> None:
    """Save ``state_dict`` to ``folder``, in files of at most ``max_shard_size``, with an index if there are several."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(state_dict, str(folder), max_shard_size=max_shard_size, safe_serialization=safe_serialization)
