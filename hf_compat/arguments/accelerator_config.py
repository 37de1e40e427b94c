"""``AcceleratorConfig``: accelerate's settings for data loaders and gradient accumulation, without accelerate."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hf_compat.errors import ArgumentsError


@dataclass
class AcceleratorConfig:
    """Settings of how batches are distributed over processes and moved to the device."""

    split_batches: bool = False
    """Whether one batch is split over the processes, rather than each process taking its own."""
    dispatch_batches: bool | None = None
    """Whether rank 0 loads all batches and sends each process its part."""
    even_batches: bool = True
    """Whether samples are repeated so that every process gets the same number of batches."""
    use_seedable_sampler: bool = True
    """Whether the order of samples depends only on the seed and the epoch."""
    non_blocking: bool = False
    """Whether batches are copied to the device asynchronously."""
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    """``num_steps`` in place of ``gradient_accumulation_steps``; ``sync_each_batch``."""
    use_configured_state: bool = False
    """Whether the script has set up accelerate's state itself, so that it is used as it is."""

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> AcceleratorConfig:
        """Return the settings in a JSON file, ``json_file``.

        Raises:
            ArgumentsError: If the file has an unknown key.
        """
        settings = json.loads(Path(json_file).read_text(encoding="utf-8"))
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            names = ", ".join(known)
            problem = f"The config file at {json_file} had unknown keys ({unknown}); use {names}."
            raise ArgumentsError([problem])
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the settings as a dict."""
        return copy.deepcopy(self.__dict__)

    def pop(self, key: str, default: object = None) -> Any:
        """Remove and return the setting ``key``, as from a dict; it then has its default."""
        return self.__dict__.pop(key, default)


def syncs_each_batch(config: AcceleratorConfig) -> bool:
    """Return whether ranks exchange gradients after each batch, not once for an update step."""
    accumulation = config.gradient_accumulation_kwargs or {}
    return bool(accumulation.get("sync_each_batch"))
