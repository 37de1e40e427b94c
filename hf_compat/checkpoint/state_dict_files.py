"""The state dicts of optimizer, scheduler and gradient scaler as files, and ``training_args.bin``."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from hf_compat.checkpoint.background import CheckpointFileWriter
from hf_compat.checkpoint.names import TRAINING_ARGS_NAME
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.errors import CheckpointError

__all__ = ["Stateful", "load_state_file", "save_state_file", "save_training_args"]


class Stateful(Protocol):
    """An optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state dict."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Load a state dict."""


def save_state_file(
    source: Stateful, folder: str | os.PathLike[str], name: str, *, file_writer: CheckpointFileWriter | None = None
) -> None:
    """Save ``source.state_dict()`` to ``folder/name``, immediately or when ``file_writer`` does."""
    file_writer = file_writer or CheckpointFileWriter()
    file_writer(torch.save, file_writer.snapshot(source.state_dict()), Path(folder, name))


def load_state_file(target: Stateful, folder: str | os.PathLike[str], name: str) -> None:
    """Load the state dict in ``folder/name`` into ``target``.

    An optimizer moves what it loads to its parameters' devices by itself.

    Raises:
        CheckpointError: If the file cannot be read, or is the state of another kind of object.
    """
    path = Path(folder, name)
    state = load_trusted(path)
    try:
        target.load_state_dict(state)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        also = ", and the same parameters frozen" if "parameter group" in str(error) else ""
        raise CheckpointError.also(type(error))(
            f"`{path}` does not fit this run's {type(target).__name__}: {error or type(error).__name__}. Resume with "
            f"the model and arguments that the checkpoint was written with{also}."
        ) from error


def save_training_args(args: object, folder: str | os.PathLike[str]) -> None:
    """Write the pickled ``args``, without their tokens, to ``folder/training_args.bin``.

    Tools look for that file; it is never read here, because unpickling it would run code. It is pushed to the Hub with
    the model, and transformers writes its tokens in plain text.
    """
    shown = copy.copy(args)
    for name in vars(args):
        if name.endswith("_token"):
            setattr(shown, name, None)
    torch.save(shown, Path(folder, TRAINING_ARGS_NAME))
