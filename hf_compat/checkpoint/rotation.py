"""Deleting the checkpoints beyond ``save_total_limit``."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks
from hf_compat.checkpoint.completeness import is_complete, read_marker
from hf_compat.checkpoint.finding import Checkpoint, list_checkpoints
from hf_compat.checkpoint.publish import final_name
from hf_compat.errors import CheckpointError

logger = logging.getLogger(__name__)

_USELESS_SPREAD = 1.0
"""Seconds: file times that all lie within this are unreliable, as on some network file systems."""


@dataclass(frozen=True, slots=True)
class OwnedCheckpoints:
    """The checkpoints that belong to a run: those that it, or the run it resumes, wrote."""

    run_id: str
    """Written into each checkpoint's completion marker."""
    adopted: frozenset[Path] = frozenset()
    """Resolved folders without a marker, written by transformers, that count as the run's own."""
    saved: frozenset[Path] = frozenset()
    """Resolved folders that this process saved: callbacks may delete any file of them, the marker too."""

    @classmethod
    def start(cls) -> OwnedCheckpoints:
        """Return the ledger of a run that starts from the beginning."""
        return cls(secrets.token_hex(8))

    @classmethod
    def resume(cls, checkpoint: str | os.PathLike[str]) -> OwnedCheckpoints:
        """Return the ledger of a run that resumes from ``checkpoint``: the one of the run that wrote it.

        Checkpoints of transformers next to ``checkpoint`` become the run's own.
        """
        folder = Path(checkpoint).resolve()
        marker = read_marker(folder)
        run_id = None if marker is None else marker.run_id
        beside = (item.path.resolve() for item in list_checkpoints(folder.parent))
        adopted = frozenset(path for path in beside if (run_id if path == folder else _run_id(path)) is None)
        return cls(run_id or secrets.token_hex(8), adopted)

    def with_saved(self, checkpoint: Path) -> OwnedCheckpoints:
        """Return the ledger after ``checkpoint`` was saved."""
        return replace(self, saved=self.saved | {checkpoint.resolve()})

    def wrote(self, checkpoint: Path) -> bool:
        """Return whether the run wrote ``checkpoint``: this process, or by its marker."""
        return checkpoint.resolve() in self.saved or _run_id(checkpoint) == self.run_id


def _run_id(folder: Path) -> str | None:
    try:
        marker = read_marker(folder)
    except CheckpointError:
        return ""
    return None if marker is None else marker.run_id


def by_age(checkpoints: Sequence[Checkpoint]) -> list[Path]:
    """Return the folders, oldest first: by file time, or by update step if the file times are equal."""
    dated = sorted((item.path.stat().st_mtime, str(item.path), item.path) for item in checkpoints)
    if len(dated) > 1 and dated[-1][0] - dated[0][0] < _USELESS_SPREAD:
        _warn_of_file_times(checkpoints[0].path.parent)
        return [item.path for item in sorted(checkpoints)]
    return [path for _, _, path in dated]


@functools.cache
def _warn_of_file_times(folder: Path) -> None:
    """Warn once of the checkpoints in ``folder``."""
    logger.warning(
        "mtime may not be reliable on this filesystem: checkpoints in %s are ordered by update step.",
        folder,
    )


def beyond_limit(
    checkpoints: Sequence[Path], limit: int, best: str | os.PathLike[str] | None, *, protects_newest: bool
) -> list[Path]:
    """Return the checkpoints to delete, in that order.

    Args:
        checkpoints: All that count, oldest first.
        limit: How many to keep. The newest and the best are kept even under a limit of one.
        best: The best checkpoint; it need not be among them.
        protects_newest: Whether newest and best are never candidates, as in transformers since 5.2. Before, the best
            was moved to the place before the newest.

    References:
        Same folders as transformers ``trainer_utils.py`` ``rotate_checkpoints`` and, before 5.2, ``trainer.py``
        ``Trainer._rotate_checkpoints``.
    """
    if len(checkpoints) <= limit:
        return []
    newest = checkpoints[-1]
    kept = _find(checkpoints, best)
    if protects_newest:
        protected = {newest, kept or Path(best)} if best is not None else {newest}
        candidates = [path for path in checkpoints if path not in protected]
        excess = len(checkpoints) - max(limit, len(protected))
    else:
        candidates = list(checkpoints)
        if kept is not None and kept != newest:
            candidates = [*(path for path in checkpoints if path not in (kept, newest)), kept, newest]
        excess = len(checkpoints) - (2 if limit == 1 and best is not None and kept != newest else limit)
    return candidates[: max(excess, 0)]


def _find(checkpoints: Sequence[Path], wanted: str | os.PathLike[str] | None) -> Path | None:
    """Return the one of ``checkpoints`` that is ``wanted``, however either path is written."""
    if wanted is None:
        return None
    return next((path for path in checkpoints if path.resolve() == Path(wanted).resolve()), None)


def rotate(
    folder: str | os.PathLike[str],
    *,
    limit: int,
    best: str | os.PathLike[str] | None,
    protects_newest: bool,
    owned: OwnedCheckpoints | None = None,
    remover: BackgroundTasks | None = None,
) -> None:
    """Delete the oldest checkpoints in ``folder`` beyond ``limit``.

    Those of other runs neither count nor are deleted, nor incomplete ones that this run is not known to have written.

    Args:
        folder: Where the checkpoints are.
        limit: How many to keep, at least 1.
        best: The best checkpoint.
        protects_newest: See ``beyond_limit``.
        owned: Which checkpoints are this run's. Default: all.
        remover: Removes their files in the background. Default: they are removed immediately.
    """
    with _warning_of(Path(folder)):
        doomed = beyond_limit(by_age(_owned(folder, owned)), limit, best, protects_newest=protects_newest)
        _delete(doomed, remover)


def delete_all_but_best(
    folder: str | os.PathLike[str],
    *,
    best: str | os.PathLike[str],
    owned: OwnedCheckpoints | None = None,
    remover: BackgroundTasks | None = None,
) -> None:
    """Delete the run's checkpoints in ``folder`` but the best one, the newest too.

    Nothing is deleted if the best one is not complete: the run could not be resumed from what is left.

    Args:
        folder: Where the checkpoints are.
        best: The best checkpoint; it need not be in ``folder``.
        owned: Which checkpoints are this run's. Default: all.
        remover: Removes their files in the background. Default: they are removed immediately.
    """
    with _warning_of(Path(folder)):
        if is_complete(best):
            others = [item.path for item in _owned(folder, owned) if item.path.resolve() != Path(best).resolve()]
            _delete(others, remover)


def _owned(folder: str | os.PathLike[str], owned: OwnedCheckpoints | None) -> list[Checkpoint]:
    return [item for item in list_checkpoints(folder) if _is_owned(item.path, owned)]


def _is_owned(checkpoint: Path, owned: OwnedCheckpoints | None) -> bool:
    if owned is not None and owned.wrote(checkpoint):
        return True  # also what somebody deleted files of, which would fill the disk
    return (owned is None or checkpoint.resolve() in owned.adopted) and is_complete(checkpoint)


def _delete(doomed: Sequence[Path], remover: BackgroundTasks | None) -> None:
    """Delete checkpoints: first their names, then, which takes a while, their files."""
    renamed: dict[Path, Path] = {}
    for path in doomed:
        logger.info("Deleting older checkpoint [%s] due to args.save_total_limit", path)
        with _warning_of(path):
            # Its files are removed in the background, perhaps from another working directory.
            renamed[path] = publish.rename_for_deletion(path).absolute()
    if remover is None or not renamed:
        _remove(renamed)
    else:
        remover.start(functools.partial(_remove, renamed))


def _remove(renamed: Mapping[Path, Path]) -> None:
    for path, hidden in renamed.items():
        with _warning_of(path):
            publish.delete_hidden(hidden)


@contextmanager
def _warning_of(path: Path) -> Iterator[None]:
    """Context that warns that ``path``, or what it contains, cannot be deleted, if so: what was saved is saved."""
    try:
        yield
    except OSError as error:
        logger.warning("`save_total_limit`: %s cannot be deleted: %s", path, final_name(str(error)))
