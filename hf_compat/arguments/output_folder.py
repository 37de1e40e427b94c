"""The output folder: made by the processes that write files, the default of what is saved, with so many checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from hf_compat.errors import OutputFolderError

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["checkpoints_kept", "folder_or_default", "make_output_folder"]

_Given = TypeVar("_Given", bound="str | os.PathLike[str]")


def checkpoints_kept(args: TrainingArguments) -> int | None:
    """Return how many checkpoints stay when this process deletes older ones; None if it deletes none."""
    limit = args.save_total_limit
    return limit if args.should_save and limit is not None and limit > 0 else None


def folder_or_default(args: TrainingArguments, folder: _Given | None) -> _Given | str:
    """Return ``folder``; for None the output folder."""
    return args.output_dir if folder is None else folder


def make_output_folder(args: TrainingArguments) -> None:
    """Make the output folder if it is not there and this process writes files.

    Raises:
        OutputFolderError: If it cannot be made.
    """
    if not args.should_save:
        return
    try:
        os.makedirs(args.output_dir, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        remedy = "and it is no folder. Remove the file" if is_file else "so it cannot be made. Have it made"
        raise OutputFolderError(
            f"`output_dir={args.output_dir!r}`: {error.strerror}, {remedy}, or name another folder.",
            errno=error.errno,
            filename=os.fspath(args.output_dir),
        ) from error
