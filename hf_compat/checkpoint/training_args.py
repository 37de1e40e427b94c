"""``training_args.bin``: written for tools that look for it, never read, since reading it would run code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hf_compat.checkpoint.names import TRAINING_ARGS_NAME

__all__ = ["save_training_args"]


def save_training_args(args: Any, folder: str | os.PathLike[str]) -> None:
    """Write the pickled ``args`` to ``folder/training_args.bin``."""
    torch.save(args, Path(folder, TRAINING_ARGS_NAME))
