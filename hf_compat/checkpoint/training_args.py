"""``training_args.bin``: written for tools that look for it, never read, because unpickling it would run code.

It is pushed to the Hub with the model, so it contains no tokens; transformers writes them in plain text.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import torch

from hf_compat.checkpoint.names import TRAINING_ARGS_NAME

__all__ = ["save_training_args"]


def save_training_args(args: object, folder: str | os.PathLike[str]) -> None:
    """Write the pickled ``args``, without their tokens, to ``folder/training_args.bin``."""
    shown = copy.copy(args)
    for name in vars(args):
        if name.endswith("_token"):
            setattr(shown, name, None)
    torch.save(shown, Path(folder, TRAINING_ARGS_NAME))
