"""``convert``: a checkpoint of Lightning to a Hugging Face folder, or the other way."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hf_compat.errors import CheckpointError
from hf_compat.tools.convert.lightning_checkpoints import is_lightning_folder, read_lightning_checkpoint
from hf_compat.tools.convert.options import Options, refuse_ineffective
from hf_compat.tools.convert.to_file import convert_to_file
from hf_compat.tools.convert.to_folder import convert_to_folder


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion."""

    target: Path
    notes: tuple[str, ...]
    """What was not carried over, a sentence each."""


def convert(
    source: str | os.PathLike[str], target: str | os.PathLike[str], options: Options | None = None
) -> Conversion:
    """Convert a checkpoint of Lightning to a Hugging Face folder, or such a folder to a ``.ckpt`` file.

    Nothing in the source can run code, and nothing is ever replaced: the target appears when it is complete.

    Args:
        source: A ``.ckpt`` file or folder of Lightning; or a model's folder, or a checkpoint of a Trainer.
        target: A new folder, or for the other way a new file.
        options: What the conversion cannot find out by itself.

    Raises:
        CheckpointError: If the source cannot be read or mapped with certainty, the target exists, or an option has no
            effect.
        CheckpointWriteError: If the target cannot be written.
    """
    origin, goal = Path(source), Path(target)
    if not origin.exists():
        raise CheckpointError(f"`{origin}` does not exist; pass a checkpoint of Lightning, or a model's folder.")
    to_file = _is_folder(origin)
    if os.path.lexists(goal) and (to_file or not _is_empty_folder(goal)):
        raise CheckpointError(f"`{goal}` already exists. Choose a new path; nothing is overwritten.")
    asked = options or Options()
    refuse_ineffective(asked, to_file=to_file)
    if to_file:
        return Conversion(goal, tuple(convert_to_file(origin, goal, asked)))
    return Conversion(goal, tuple(convert_to_folder(read_lightning_checkpoint(origin), goal, asked)))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _is_folder(path: Path) -> bool:
    """Return whether ``path`` is a Hugging Face folder, not a checkpoint of Lightning."""
    return path.is_dir() and not is_lightning_folder(path)
