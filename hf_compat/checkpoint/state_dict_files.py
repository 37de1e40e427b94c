"""The states of optimizer, scheduler and gradient scaler as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from hf_compat.checkpoint.background import Writes
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.errors import CheckpointError

__all__ = ["Stateful", "load_state_file", "save_state_file"]


class Stateful(Protocol):
    """An optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state."""


def save_state_file(
    source: Stateful, folder: str | os.PathLike[str], name: str, *, writes: Writes | None = None
) -> None:
    """Write ``source.state_dict()`` to ``folder/name``, at once or when ``writes`` does."""
    writes = writes or Writes()
    writes(torch.save, writes.snapshot(source.state_dict()), Path(folder, name))


def load_state_file(target: Stateful, folder: str | os.PathLike[str], name: str, *, map_location: Any = "cpu") -> None:
    """Give ``target`` the state in ``folder/name``.

    An optimizer moves what it loads to its parameters' devices by itself.

    Raises:
        CheckpointError: If the file cannot be read, or is the state of another kind of object.
    """
    path = Path(folder, name)
    state = load_trusted(path, map_location)
    try:
        target.load_state_dict(state)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"`{path}` does not fit this run's {type(target).__name__}: {error or type(error).__name__}. Resume with "
            "the model and arguments that the checkpoint was written with."
        ) from error
