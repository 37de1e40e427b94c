"""``AcceleratorConfig``: the settings of accelerate that reach the data loaders, without accelerate."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hf_compat.errors import ArgumentsError

__all__ = ["AcceleratorConfig"]


@dataclass
class AcceleratorConfig:
    """How batches are shared out between processes and brought to the device."""

    split_batches: bool = False
    """Whether a batch is split over the processes, rather than one given to each."""
    dispatch_batches: bool | None = None
    """Whether the main process loads all batches and hands them out."""
    even_batches: bool = True
    """Whether samples are repeated so that every process gets as many batches."""
    use_seedable_sampler: bool = True
    """Whether the order of an epoch follows from its seed and number alone."""
    non_blocking: bool = False
    """Whether batches are copied to the device without waiting."""
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    """``num_steps`` in place of ``gradient_accumulation_steps``; ``sync_each_batch``."""
    use_configured_state: bool = False
    """Whether accelerate's state is set up by the script already."""

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> AcceleratorConfig:
        """Return the settings in a JSON file.

        Raises:
            ArgumentsError: If the file has a key that is no setting.
        """
        settings = json.loads(Path(json_file).read_text(encoding="utf-8"))
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            names = ", ".join(known)
            problem = f"`accelerator_config={str(json_file)!r}`: the file has the keys {unknown}; known are {names}."
            raise ArgumentsError([problem])
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the settings as a dict."""
        return copy.deepcopy(self.__dict__)

    def pop(self, key: str, default: Any = None) -> Any:
        """Take the setting ``key`` out, as from a dict; it then reads as its default."""
        return self.__dict__.pop(key, default)
