"""``training_args.bin``: written for tools that look for it, never read, since reading it would run code.

It goes wherever the model goes, to the Hub too, so it holds no token; transformers writes its tokens in plain text.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch

from hf_compat.checkpoint.names import TRAINING_ARGS_NAME

__all__ = ["save_training_args"]


def save_training_args(args: Any, folder: str | os.PathLike[str]) -> None:
    """Write the pickled ``args``, without their tokens, to ``folder/training_args.bin``."""
    shown = copy.copy(args)
    for name in vars(args):
        if name.endswith("_token"):
            setattr(shown, name, None)
    torch.save(shown, Path(folder, TRAINING_ARGS_NAME))
