"""Writing a checkpoint folder so that neither ``kill -9`` nor a full disk can damage it, or an earlier one.

A checkpoint is written to a hidden sibling folder, flushed to the disk, marked as complete and then renamed. Hidden
siblings that a killed process left behind are dealt with by ``clean_orphans``. Their names say what they are::

    .checkpoint-12.partial-<host>-<pid>-<token>     being written; becomes checkpoint-12
    .checkpoint-12.replaced-<host>-<pid>-<token>    the previous checkpoint-12, about to be deleted
    .checkpoint-12.deleted-<host>-<pid>-<token>     beyond ``save_total_limit``, about to be deleted
    .checkpoint-12.pushed-<host>-<pid>-<token>      a copy that is being uploaded; see ``hub.py``

Functions that list checkpoints, those of transformers included, ignore them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from safetensors import SafetensorError

from hf_compat.checkpoint.completeness import is_complete, read_marker, write_marker
from hf_compat.checkpoint.final_names import KINDS, naming_final_folders
from hf_compat.checkpoint.names import LIGHTNING_MARKER_NAME
from hf_compat.errors import CheckpointError, CheckpointWriteError

__all__ = [
    "HIDDEN_FOLDERS",
    "abandon",
    "begin",
    "clean_orphans",
    "creating_file",
    "creating_folder",
    "delete_folder",
    "flush",
    "flush_file",
    "hidden_sibling",
    "is_own",
    "is_write_failure",
    "publish",
    "rename_for_deletion",
    "staging",
]

logger = logging.getLogger(__name__)

HIDDEN_FOLDERS = tuple(f".*.{kind}-*" for kind in KINDS)
"""Patterns of the names of hidden folders."""
_HIDDEN = re.compile(
    rf"\.(?P<final>.+)\.(?P<kind>{'|'.join(KINDS)})-(?P<host>.*)-(?P<pid>[0-9]+)-(?P<token>[0-9a-f]{{8}})"
)
"""The name of a hidden folder."""
# In containers, runs often have the same host name and process id: only the token distinguishes them.
_own_tokens: set[str] = set()


@contextmanager
def staging(final: str | os.PathLike[str], *, step: int, run_id: str | None = None) -> Iterator[Path]:
    """Yield an empty folder that becomes ``final`` when the block ends, and leaves no trace if it fails.

    Args:
        final: The checkpoint folder. One that exists is replaced.
        step: The update step, for the completion marker.
        run_id: The run that writes, for the completion marker; see ``rotation.Ledger``.

    Raises:
        CheckpointWriteError: If the folder cannot be written; earlier checkpoints are untouched.
    """
    target, free = Path(final), ""
    try:
        with naming_final_folders():
            staged = begin(target)
            try:
                yield staged
                publish(staged, target, step=step, run_id=run_id)
            except BaseException:
                free = _free_space(staged)  # before the files written so far are deleted
                abandon(staged)
                raise
    except (CheckpointWriteError, OSError, RuntimeError, SafetensorError) as error:
        if not is_write_failure(error):
            raise
        raise CheckpointWriteError(
            f"`{target}` cannot be written: {error}{free}. Earlier checkpoints are untouched. Check the free space "
            f"and the permissions of `{target.parent}`."
        ) from error


@contextmanager
def creating_folder(target: Path, *, step: int | None) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends, and leaves no trace if it fails.

    Args:
        target: A new folder, or an empty one. Nothing is ever replaced.
        step: The update step for the completion marker of a checkpoint; None for a model alone, which has no marker.

    Raises:
        CheckpointWriteError: If the folder cannot be written, or something else took its place meanwhile.
    """
    with _creating(target) as staged:
        yield staged
        flush(staged)
        if step is not None:
            write_marker(staged, step=step)
            flush_file(staged / LIGHTNING_MARKER_NAME)
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
    try:
        with naming_final_folders():
            clean_orphans(target.parent)
            staged = begin(target)
            try:
                yield staged
            except BaseException:
                abandon(staged)
                raise
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_write_failure(error):
            raise
        raise CheckpointWriteError(f"`{target}` cannot be written: {error}. Nothing was written.") from error


def _free_space(folder: Path) -> str:
    """Return the free space for the error message, since torch's errors do not mention a full disk."""
    try:
        return f" ({shutil.disk_usage(folder).free / 1e9:.2f} GB free)"
    except OSError:
        return ""


def is_write_failure(error: Exception) -> bool:
    """Return whether ``error`` comes from the file system; torch reports that as a RuntimeError."""
    return (
        isinstance(error, CheckpointWriteError | OSError | SafetensorError)
        or "inline_container" in str(error)
        or "PytorchStreamWriter" in str(error)
    )


def begin(final: Path) -> Path:
    """Create and return an empty folder next to ``final``, on the same file system."""
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = hidden_sibling(final, "partial")
    staged.mkdir()
    return staged


def publish(staged: Path, final: Path, *, step: int, run_id: str | None = None) -> None:
    """Flush ``staged`` to the disk, mark it as complete and rename it to ``final``.

    At any time one of the two, or the previous ``final``, is complete on the disk.
    """
    kept = _keep_other_files(final, staged) if final.is_dir() and not final.is_symlink() else []
    flush(staged)
    # The marker has to be flushed after all the files that it lists.
    write_marker(staged, step=step, run_id=run_id, foreign=kept)
    flush_file(staged / LIGHTNING_MARKER_NAME)
    flush_file(staged)
    if final.is_file():
        raise FileExistsError(errno.EEXIST, "a file with that name already exists", str(final))
    if os.path.lexists(final):
        former = hidden_sibling(final, "replaced")
        final.rename(former)
        try:
            staged.rename(final)
        except OSError:
            former.rename(final)
            raise
        _remove(former)
    else:
        staged.rename(final)
    flush_file(final.parent)


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
    _remove(staged)


def delete_folder(folder: Path) -> None:
    """Delete a checkpoint folder; a killed process leaves no incomplete folder under its name.

    Raises:
        OSError: If it cannot be renamed or deleted, or is a link to a folder elsewhere.
    """
    with naming_final_folders():
        shutil.rmtree(rename_for_deletion(folder))


def rename_for_deletion(folder: Path) -> Path:
    """Rename a checkpoint folder to a hidden one, which ``clean_orphans`` deletes; return its new path.

    Raises:
        OSError: If it cannot be renamed, or is a link to a folder elsewhere.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    return folder.rename(hidden_sibling(folder, "deleted"))


def clean_orphans(folder: str | os.PathLike[str]) -> list[Path]:
    """Clean up the hidden folders that ended processes of this host left in ``folder``; return those folders.

    A checkpoint that was complete but not renamed yet is renamed; everything else is deleted.
    """
    parent = Path(folder)
    if not parent.is_dir():
        return []
    found = ((match["kind"], path, match) for path in parent.iterdir() if (match := _HIDDEN.fullmatch(path.name)))
    handled = []
    # By kind: of a new (partial) and a former checkpoint under one name, the new one is kept.
    for kind, path, match in sorted(found, key=lambda item: item[:2]):
        if not _is_orphan(match):
            continue
        final = parent / match["final"]
        if not os.path.lexists(final) and (kind == "replaced" or (kind == "partial" and _is_marked(path))):
            path.rename(final)
            if kind == "replaced":
                logger.warning("Restored %s: the process that was replacing it was killed.", final)
            else:
                logger.warning(
                    "Recovered %s: it was completely written, but not yet renamed, when the process was killed.", final
                )
        else:
            _remove(path)
            logger.info("Deleted a hidden folder of %s, left behind by a killed process.", final)
        handled.append(path)
    return handled


def is_own(hidden: Path) -> bool:
    """Return whether this process made the hidden folder ``hidden``."""
    match = _HIDDEN.fullmatch(hidden.name)
    return match is not None and int(match["pid"]) == os.getpid() and match["token"] in _own_tokens


def _is_marked(path: Path) -> bool:
    return (path / LIGHTNING_MARKER_NAME).is_file() and is_complete(path)


def _is_orphan(match: re.Match[str]) -> bool:
    if match["host"] != _host():
        return False  # whether its processes are alive cannot be seen from here
    pid = int(match["pid"])
    return match["token"] not in _own_tokens if pid == os.getpid() else not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C, not a question
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # someone else's process
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def hidden_sibling(final: Path, kind: str) -> Path:
    """Return a new name next to ``final`` that ``clean_orphans`` recognises.

    Args:
        final: The checkpoint folder that it belongs to.
        kind: What it is for; see the table in the module's docstring.
    """
    token = secrets.token_hex(4)
    _own_tokens.add(token)
    return final.with_name(f".{final.name}.{kind}-{_host()}-{os.getpid()}-{token}")


def _keep_other_files(existing: Path, staged: Path) -> list[str]:
    """Copy what somebody else put into ``existing``, unless ``staged`` has a file of that name; return the names.

    Of a checkpoint that is saved again, its own files are not copied.
    """
    try:
        marker = read_marker(existing)
    except CheckpointError:
        marker = None
    own = {LIGHTNING_MARKER_NAME, *(PurePosixPath(name).parts[0] for name in ([] if marker is None else marker.files))}
    kept = []
    for path in existing.iterdir():
        target = staged / path.name
        if path.name in own or target.exists():
            continue
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy2(path, target)
        kept.append(path.name)
    return kept


def _remove(path: Path) -> None:
    """Delete a folder or link as far as possible."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
