"""Writing a checkpoint folder so that neither ``kill -9`` nor a full disk can damage it, or an earlier one.

A checkpoint is written to a hidden sibling folder, flushed to the disk, marked with what was written and then renamed:
a folder under its final name is complete because it was renamed. Hidden siblings that a killed process left behind are
dealt with by ``clean_orphans``; see ``hidden_folders.py`` for their names.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hf_compat.checkpoint.checksums import Checksums
from hf_compat.checkpoint.completeness import differences, read_marker, write_marker
from hf_compat.checkpoint.early_flush import begin_writing, drop_cached
from hf_compat.checkpoint.hidden_folders import HiddenFolder, hidden_folders, hidden_sibling
from hf_compat.checkpoint.names import LIGHTNING_MARKER_NAME, PREFIX_CHECKPOINT_DIR
from hf_compat.checkpoint.write_failures import as_write_error, close_files, is_write_failure
from hf_compat.errors import CheckpointError

__all__ = [
    "abandon",
    "begin",
    "clean_orphans",
    "creating_file",
    "creating_folder",
    "delete_folder",
    "delete_hidden",
    "delete_leftovers",
    "flush",
    "flush_file",
    "publish",
    "rename_for_deletion",
    "staging",
    "target_of",
]

logger = logging.getLogger(__name__)

_ATTEMPTS = 100
"""Times that a folder is published anew because another run has saved the same one at the same time."""

_leftovers: set[Path] = set()
"""Hidden folders of this process that could not be deleted."""


@contextmanager
def staging(
    final: str | os.PathLike[str], *, step: int, run_id: str | None = None, checksums: Checksums | None = None
) -> Iterator[Path]:
    """Yield an empty folder that becomes ``final`` when the block ends, and leaves no trace if it fails.

    Args:
        final: The checkpoint folder. One that exists is replaced.
        step: The update step, for the marker.
        run_id: The run that writes, for the marker; see ``rotation.OwnedCheckpoints``.
        checksums: Checksums of files that need not be read again.

    Raises:
        CheckpointWriteError: If the folder cannot be written; earlier checkpoints are untouched.
    """
    target = Path(final)
    advice = f"Earlier checkpoints are untouched. Check the free space and the permissions of `{target.parent}`."
    with _hidden_folder_of(target, advice) as staged:
        yield staged
        publish(staged, target, step=step, run_id=run_id, checksums=checksums or Checksums())


def target_of(folder: Path) -> Path:
    """Return where ``folder`` is written: where it leads to if it is a link to a folder, so that the link stays."""
    try:
        return folder.resolve() if folder.is_symlink() and folder.is_dir() else folder
    except OSError:  # which writing there will raise again, as an error of a checkpoint
        return folder


@contextmanager
def _hidden_folder_of(target: Path, advice: str) -> Iterator[Path]:
    """Yield a folder in which ``target`` is written, and delete it if that fails.

    Args:
        target: What is written.
        advice: Ends the message of the error.
    """
    staged = None
    try:
        staged = begin(target)
        yield staged
    except BaseException as error:
        failure = None
        if is_write_failure(error):
            # Before the files written so far are deleted.
            free = "" if staged is None else _free_space(staged)
            failure = as_write_error(error, target, staged=staged, remark=free, advice=advice)
            close_files(error)
        if staged is not None:
            abandon(staged)
        if failure is not None:
            raise failure from error
        raise


def _free_space(folder: Path) -> str:
    try:
        return f" ({shutil.disk_usage(folder).free / 1e9:.2f} GB free)"
    except OSError:
        return ""


@contextmanager
def creating_folder(target: Path, *, step: int | None) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends, and leaves no trace if it fails.

    Args:
        target: A new folder, or an empty one. Nothing is ever replaced.
        step: The update step for the marker of a checkpoint; None for a model alone, which has no marker.

    Raises:
        CheckpointWriteError: If the folder cannot be written, or something else took its place meanwhile.
    """
    with _creating(target) as staged:
        yield staged
        if step is None:
            flush(staged)
        else:
            _mark(staged, step=step, run_id=None, checksums=Checksums())
        flush_file(staged)
        if target.is_dir():
            target.rmdir()  # fails if it is not empty
        staged.rename(target)
        flush_file(target.parent)


@contextmanager
def creating_file(target: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which becomes ``target`` when the block ends, and leaves no trace if it fails.

    Args:
        target: A new file. Nothing is ever replaced.

    Raises:
        CheckpointWriteError: If the file cannot be written, or another one took its place meanwhile.
    """
    with _creating(target) as staged:
        draft = staged / target.name
        yield draft
        flush_file(draft)
        _name_new_file(draft, target)
        flush_file(target.parent)
        abandon(staged)


def _name_new_file(draft: Path, target: Path) -> None:
    """Give ``draft`` the name ``target``; unlike a rename, a link does not replace a file that appears just now."""
    with suppress(OSError):  # a file is there, or the file system has no hard links
        os.link(draft, target)
        return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "a file with that name already exists", str(target))
    draft.rename(target)


@contextmanager
def _creating(target: Path) -> Iterator[Path]:
    with _hidden_folder_of(target, "Nothing was written.") as staged:
        clean_orphans(target.parent)
        yield staged


def begin(final: Path) -> Path:
    """Create and return an empty folder next to ``final``, on the same file system."""
    delete_leftovers()
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = hidden_sibling(final, "partial")
    staged.mkdir()
    return staged


def publish(staged: Path, final: Path, *, step: int, run_id: str | None, checksums: Checksums) -> None:
    """Flush ``staged`` to the disk, mark it with what it contains and rename it to ``final``.

    At any time one of the two, or the previous ``final``, is complete on the disk.
    """
    _mark(staged, step=step, run_id=run_id, checksums=checksums)
    flush_file(staged)
    if final.is_file():
        raise FileExistsError(errno.EEXIST, "a file with that name already exists", str(final))
    for _ in range(_ATTEMPTS):
        former = _make_way(final)
        try:
            staged.rename(final)
        except OSError as error:
            is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)  # by another run that saves the same folder
            if former is not None and not is_taken:
                former.rename(final)
            elif former is not None:
                _delete_or_note(HiddenFolder.of(former))
            if not is_taken:
                raise
            continue
        flush_file(final.parent)
        if former is not None:
            _delete_or_note(HiddenFolder.of(former))
        return
    raise FileExistsError(errno.EEXIST, "other runs keep saving a checkpoint of that name", str(final))


def _make_way(final: Path) -> Path | None:
    """Rename what is at ``final`` to a hidden folder, and return that; None if there is nothing, or no longer."""
    if not os.path.lexists(final):
        return None
    former = hidden_sibling(final, "replaced")
    try:
        final.rename(former)
    except FileNotFoundError:  # another run has deleted or replaced it
        return None
    return former


def _mark(staged: Path, *, step: int, run_id: str | None, checksums: Checksums) -> None:
    """Flush the files of ``staged``, then a marker that lists them."""
    for path in _files(staged):
        begin_writing(path)
    sums = checksums.of_folder(staged)  # read from the page cache while the disk writes
    flush(staged)
    write_marker(staged, step=step, run_id=run_id, checksums=sums)
    flush_file(staged / LIGHTNING_MARKER_NAME)
    with suppress(OSError):
        for path in _files(staged):
            drop_cached(path)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def flush(folder: Path) -> None:
    """Make the system write all files and folders in ``folder`` to the disk."""
    for path in folder.rglob("*"):
        flush_file(path)


def flush_file(path: Path) -> None:
    """Make the system write the content of the file, or the entries of the folder, ``path`` to the disk."""
    if path.is_symlink() or (os.name == "nt" and path.is_dir()):
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no flushing of folders.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def abandon(staged: Path) -> None:
    """Delete a folder that ``begin`` made and that will not be published."""
    shutil.rmtree(staged, ignore_errors=True)
    if staged.exists():
        _leftovers.add(staged)


def delete_folder(folder: Path) -> None:
    """Delete a checkpoint folder; a killed process leaves no incomplete folder under its name.

    Raises:
        OSError: If it cannot be renamed or deleted, or is a link to a folder elsewhere.
    """
    delete_hidden(rename_for_deletion(folder))


def rename_for_deletion(folder: Path) -> Path:
    """Rename a checkpoint folder to a hidden one, which ``clean_orphans`` deletes; return its new path.

    Raises:
        OSError: If it cannot be renamed, or is a link to a folder elsewhere.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    return folder.rename(hidden_sibling(folder, "deleted"))


def delete_hidden(hidden: Path) -> None:
    """Delete a hidden folder of this process; if that fails, ``delete_leftovers`` tries again.

    Raises:
        OSError: If it cannot be deleted.
    """
    try:
        shutil.rmtree(hidden)
    except OSError:
        _leftovers.add(hidden)
        raise


def delete_leftovers() -> None:
    """Delete the hidden folders of this process that could not be deleted before, as far as possible."""
    for hidden in [*_leftovers]:
        _delete_or_note(HiddenFolder.of(hidden))


def _delete_or_note(hidden: HiddenFolder) -> None:
    _leftovers.discard(hidden.path)
    try:
        _delete(hidden)
    except OSError:
        _leftovers.add(hidden.path)


def _delete(hidden: HiddenFolder) -> None:
    """Delete a hidden folder; of a replaced checkpoint, what was not written by a save goes to the new one first."""
    if hidden.path.is_symlink() or hidden.path.is_file():
        hidden.path.unlink(missing_ok=True)
    elif hidden.path.is_dir():
        if hidden.kind == "replaced" and hidden.final.is_dir():
            _move_other_files(hidden.path, hidden.final)
        shutil.rmtree(hidden.path)


def _move_other_files(former: Path, final: Path) -> None:
    """Move what the save of ``former`` did not write to ``final``, unless that has a file of the name.

    Files, folders, links and whatever else are moved as they are: not one of them is opened.
    """
    try:
        marker = read_marker(former)
    except CheckpointError:
        marker = None
    own = {LIGHTNING_MARKER_NAME, *(name.partition("/")[0] for name in ([] if marker is None else marker.files))}
    for path in former.iterdir():
        target = final / path.name
        if path.name not in own and not os.path.lexists(target):
            path.rename(target)


def clean_orphans(folder: str | os.PathLike[str]) -> list[Path]:
    """Clean up the hidden folders that ended processes of this host left in ``folder``; return those folders.

    That is also where links in it lead to. A checkpoint that was complete but not renamed yet is renamed; everything
    else is deleted.
    """
    parent = Path(folder)
    if not parent.is_dir():
        return []
    handled = []
    links = [path for path in parent.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_symlink()]
    places = {parent, *(target_of(link).parent for link in links)}
    found = [hidden for place in places for hidden in hidden_folders(place)]
    # By kind: of a new (partial) and a former checkpoint under one name, the new one is kept.
    for hidden in sorted(found, key=lambda item: (item.kind, item.path)):
        if not hidden.is_orphan:
            continue
        _recover_or_delete(hidden)
        handled.append(hidden.path)
    return handled


def _recover_or_delete(hidden: HiddenFolder) -> None:
    if os.path.lexists(hidden.final) or not (hidden.kind == "replaced" or _is_ready(hidden)):
        with suppress(OSError):
            _delete(hidden)
            logger.info("Deleted a hidden folder of %s, left behind by a killed process.", hidden.final)
        return
    hidden.path.rename(hidden.final)
    if hidden.kind == "replaced":
        logger.warning("Restored %s: the process that was replacing it was killed.", hidden.final)
    else:
        logger.warning(
            "Recovered %s: it was completely written, but not yet renamed, when the process was killed.", hidden.final
        )


def _is_ready(hidden: HiddenFolder) -> bool:
    """Return whether a checkpoint was only to be renamed: its marker is there, and every file that it lists."""
    if hidden.kind != "partial":
        return False
    try:
        marker = read_marker(hidden.path)
        return marker is not None and next(differences(hidden.path, marker), None) is None
    except (CheckpointError, OSError):
        return False
