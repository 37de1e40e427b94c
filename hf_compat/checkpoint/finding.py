"""Finding checkpoints in a folder: all, the newest complete one, the one to resume from."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from hf_compat.checkpoint.completeness import incomplete_reason, incomplete_reason_of_any
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME
from hf_compat.errors import CheckpointError, described

logger = logging.getLogger(__name__)

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]+)")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A checkpoint folder, complete or not; ordered by its update step."""

    step: int
    """The update step in the folder's name."""
    path: Path


def checkpoint_at(path: str | os.PathLike[str]) -> Checkpoint | None:
    """Return ``path`` as a checkpoint, complete or not; None if it is not a folder with such a name."""
    folder = Path(path)
    match = _NAME.fullmatch(folder.resolve().name)
    return Checkpoint(int(match[1]), folder) if match and folder.is_dir() else None


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Checkpoint]:
    """Return the checkpoints in ``folder``, complete or not, in the order of their update steps.

    A folder counts if its name is ``checkpoint-`` and a number; ``checkpoint-7-copy`` is someone's own.

    Raises:
        FileNotFoundError: If there is no ``folder``.
    """
    parent = Path(folder)
    matches = ((_NAME.fullmatch(name), parent / name) for name in os.listdir(parent))
    return sorted(Checkpoint(int(match[1]), path) for match, path in matches if match and path.is_dir())


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the path of the whole checkpoint with the largest update step in ``folder``, None if there is none.

    It may be of a loop of one's own. Each incomplete one that is skipped is named in a logged warning, with the reason.

    Raises:
        FileNotFoundError: If there is no ``folder``.
    """
    return _newest(folder, incomplete_reason_of_any)


def _newest(folder: str | os.PathLike[str], reason_of: Callable[[Path], str | None]) -> str | None:
    """Return the path of the newest checkpoint in ``folder`` of which ``reason_of`` gives no reason to skip it."""
    for checkpoint in reversed(list_checkpoints(folder)):
        reason = reason_of(checkpoint.path)
        if reason is None:
            return os.path.join(folder, checkpoint.path.name)
        logger.warning("Skipped the incomplete checkpoint %s: %s", checkpoint.path, reason)
    return None


def find_checkpoint(
    output_dir: str | os.PathLike[str], resume_from_checkpoint: str | os.PathLike[str] | bool | None, *, is_main: bool
) -> str | None:
    """Return the path of the checkpoint to resume from, None to start from the beginning; every rank has to call it.

    Args:
        output_dir: Where the run's checkpoints are.
        resume_from_checkpoint: A path; True for the newest complete checkpoint in ``output_dir``; ``"auto"`` for the
            same if there is one; None or False for none. One by its path may be incomplete, with a logged warning.
        is_main: Whether this is rank 0, which searches for all ranks: the others might see a folder that is being
            written or deleted.

    Raises:
        CheckpointError: If there is no such checkpoint.
    """
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return None
    if resume_from_checkpoint in ("auto", True):
        from hf_compat.distributed import collectives  # imports torch, which the tools that list checkpoints do not

        newest = _newest(output_dir, incomplete_reason) if is_main else None  # of a Trainer, to resume from
        path: str | None = collectives.broadcast_object(newest)
        if path is None and resume_from_checkpoint is True:
            raise CheckpointError(
                f"No valid checkpoint found in output directory ({output_dir}) for `resume_from_checkpoint=True`. "
                "Pass the path of a checkpoint, or omit the argument to start from the beginning."
            )
    elif not isinstance(resume_from_checkpoint, str | os.PathLike):
        raise CheckpointError.also(TypeError)(
            f"`resume_from_checkpoint={resume_from_checkpoint!r}`: {described(resume_from_checkpoint)}. Pass the path "
            "of a checkpoint, or True for the newest in `output_dir`."
        )
    else:
        path = str(resume_from_checkpoint)
    if path is None:
        return None
    _check_is_checkpoint(Path(path))
    reason = incomplete_reason(path, as_saved=True)
    if reason is not None:  # a file may have been deleted on purpose; damaged files are refused when they are read
        logger.warning(
            "`resume_from_checkpoint=%s`: the checkpoint is incomplete or was modified after saving: %s. If it cannot "
            "be read, pass another one, or True for the newest complete one.",
            path,
            reason.removesuffix("."),
        )
    return path


def _check_is_checkpoint(path: Path) -> None:
    """Raise unless ``path`` is a folder that may be a checkpoint.

    Raises:
        CheckpointError: If it does not exist, is a file, or is the folder of a run with checkpoints.
    """
    reason = None
    if path.is_file():
        reason = "it is a file, not a folder. A checkpoint of Lightning is made one by `hf-compat convert FILE FOLDER`."
    elif not path.is_dir():
        reason = "the folder does not exist."
        if path.name in ("True", "true"):  # of a command line
            reason += " 'auto' resumes if there is a checkpoint, also on a command line."
    elif not _has_files(path) and (inside := list_checkpoints(path)):
        reason = f"it is the folder of a run, whose newest checkpoint is `{inside[-1].path}`."
    if reason is not None:
        raise CheckpointError(
            f"`resume_from_checkpoint={str(path)!r}`: {reason} "
            "Can't find a valid checkpoint at this path; pass one, or True for the newest in `output_dir`."
        )


def _has_files(folder: Path) -> bool:
    """Return whether ``folder`` has a trainer's state or weights, so that it may be a checkpoint."""
    return any(path.name == TRAINER_STATE_NAME or path.suffix in (".safetensors", ".bin") for path in folder.iterdir())


def relocated(best: str, resumed: str | os.PathLike[str]) -> str:
    """Return the path of the run's best checkpoint: ``best``, or next to ``resumed`` if the run's folder was moved.

    Args:
        best: The path in the resumed checkpoint's state; returned unchanged if it is in neither place.
        resumed: The checkpoint that the run resumes from.

    Raises:
        CheckpointError: If ``best`` does not end in the name of a checkpoint; no Trainer writes that.
    """
    name = PureWindowsPath(best).name  # a path of either system
    if not _NAME.fullmatch(name):
        raise CheckpointError(
            f"`best_model_checkpoint` of `{resumed}` is `{best}`, which is not a checkpoint: do not trust this folder."
        )
    beside = Path(resumed).parent / name
    return str(beside) if not Path(best).is_dir() and beside.is_dir() else best
