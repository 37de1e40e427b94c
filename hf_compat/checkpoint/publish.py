"""Writing a checkpoint folder so that neither ``kill -9`` nor a full disk can damage it, or an earlier one.

A checkpoint is written to a hidden sibling folder, flushed to the disk, marked with what was written and then renamed:
a folder under its final name is complete because it was renamed. Hidden siblings that a killed process left behind are
dealt with by ``clean_orphans``; see ``HiddenFolder`` for their names.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import socket
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch.distributed import ProcessGroup

from hf_compat.checkpoint.background import BackgroundTasks
from hf_compat.checkpoint.completeness import differences, read_marker, write_marker
from hf_compat.checkpoint.flushing import begin_writing, checksums_of, drop_cached
from hf_compat.checkpoint.names import LIGHTNING_MARKER_NAME, PREFIX_CHECKPOINT_DIR
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.oom_consensus import give_up
from hf_compat.errors import CheckpointError, CheckpointWriteError, WriteError

logger = logging.getLogger(__name__)


# The hidden folders beside checkpoints.


_KINDS = ("partial", "replaced", "deleted", "pushed")
_NAME = rf"\.(?P<kind>{'|'.join(_KINDS)})-(?P<host>[^/\\\s]{{0,255}}?)-(?P<pid>[0-9]+)-(?P<token>[0-9a-f]{{8}})"
_HIDDEN = re.compile(rf"\.(?P<final>.+){_NAME}")
"""The name of a hidden folder."""
_IN_TEXT = re.compile(rf"\.(?P<final>[^/\\\s'\"]{{1,255}}?){_NAME}")
"""The same within a path or a sentence; of a final name with spaces only the last word is found."""

HIDDEN_FOLDERS = tuple(f".*.{kind}-*" for kind in _KINDS)
"""Patterns of the names of hidden folders."""

# In containers, runs often have the same host name and process id: only the token distinguishes them.
_own_tokens: set[str] = set()


@dataclass(frozen=True, slots=True)
class HiddenFolder:
    """A hidden folder beside a checkpoint, and what its name says.

    ::

        .checkpoint-12.partial-<host>-<pid>-<token>     being written; becomes checkpoint-12
        .checkpoint-12.replaced-<host>-<pid>-<token>    the previous checkpoint-12, about to be deleted
        .checkpoint-12.deleted-<host>-<pid>-<token>     beyond `save_total_limit`, about to be deleted
        .checkpoint-12.pushed-<host>-<pid>-<token>      a copy that is being uploaded; see `hub.py`

    Functions that list checkpoints, those of transformers included, ignore it.
    """

    kind: str
    """What it is for: "partial", "replaced", "deleted" or "pushed"."""
    path: Path
    final: Path
    """The folder that it becomes, or was."""
    host: str
    pid: int
    """The process that made it."""
    token: str

    @classmethod
    def of(cls, path: Path) -> HiddenFolder:
        """Return the hidden folder ``path``, named by ``hidden_sibling``.

        Raises:
            ValueError: If it is not named so.
        """
        match = _HIDDEN.fullmatch(path.name)
        if match is None:
            raise ValueError(f"`{path}` is not named like a hidden folder.")
        return cls(
            match["kind"], path, path.with_name(match["final"]), match["host"], int(match["pid"]), match["token"]
        )

    @property
    def is_orphan(self) -> bool:
        """Whether the process that made it has ended, as far as that can be seen on this host."""
        if self.host != _host():
            return False
        return self.token not in _own_tokens if self.pid == os.getpid() else not _is_alive(self.pid)


def hidden_folders(parent: Path) -> Iterator[HiddenFolder]:
    """Return the hidden folders in ``parent``."""
    return (HiddenFolder.of(path) for path in parent.iterdir() if _HIDDEN.fullmatch(path.name))


def hidden_sibling(final: Path, kind: str) -> Path:
    """Return a new name next to ``final`` that ``hidden_folders`` recognises.

    Args:
        final: The checkpoint folder that it belongs to.
        kind: What it is for; see :class:`HiddenFolder`.
    """
    token = secrets.token_hex(4)
    _own_tokens.add(token)
    return final.with_name(f".{final.name}.{kind}-{_host()}-{os.getpid()}-{token}")


def final_name(text: str) -> str:
    """Return the path or sentence ``text`` with each hidden folder in it under its final name.

    For messages: code that writes a file knows the hidden folder alone, and a user the final one.
    """
    return _IN_TEXT.sub(r"\g<final>", text)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C, not a question
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


# Errors of the file system while files are written, in the form in which each library reports them.


_TORCH = re.compile(r"inline_container|PytorchStreamWriter|iostream|basic_ios|basic_filebuf|ios_base")
"""The texts of torch's errors about files and C++ streams, which contain no number."""
_RUST = re.compile(r"\(os error ([0-9]+)\)|\bOs \{ code: ([0-9]+)")
"""The system's number in errors of safetensors and tokenizers."""
_PROBE_SIZE = 2**20  # bytes; more than a file system leaves free that has just been full


def is_write_failure(error: BaseException) -> bool:
    """Return whether ``error`` comes from the file system: from Python, torch, safetensors or tokenizers."""
    if isinstance(error, OSError | SafetensorError):
        return True
    # torch raises RuntimeError, tokenizers Exception itself.
    if not (isinstance(error, RuntimeError) or type(error) is Exception):
        return False
    return bool(_TORCH.search(str(error)) or _RUST.search(str(error)))


def errno_of(error: BaseException, place: Path | None = None) -> int | None:
    """Return the system's number of a failure, None if it is not known.

    Args:
        error: The failure.
        place: The folder that was written into. If ``error`` has no number, a file is written there to find it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _RUST.search(str(error))
    if found is not None:
        return int(found[1] or found[2])
    return None if place is None else _probed_errno(place)


def close_files(error: BaseException) -> None:
    """Let go of what the calls that ended with ``error`` hold.

    torch's writer would keep its file open until the next garbage collection, and an open file, deleted or not, its
    space on a disk that is full.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def as_write_error(
    error: BaseException, target: Path, *, staged: Path | None = None, remark: str = "", advice: str
) -> CheckpointWriteError:
    """Return the error to raise for the failure ``error``, which names ``target``.

    Args:
        error: The failure.
        target: What was to be written.
        staged: The folder in which it was written, for ``errno_of``.
        remark: Stands after the reason.
        advice: Ends the message.
    """
    number = errno_of(error, staged)
    reason = final_name(str(error)) or type(error).__name__
    if number is not None and os.strerror(number) not in reason:
        reason = f"{reason.rstrip('.')}: {os.strerror(number)}"
    file = getattr(error, "filename", None)
    return CheckpointWriteError(
        f"`{target}` cannot be written: {reason}{remark}. {advice}",
        errno=number,
        filename=str(target) if file is None else final_name(os.fsdecode(file)),
    )


def _probed_errno(folder: Path) -> int | None:
    """Return the number of the error that writing to ``folder`` ends with at present, None if it succeeds."""
    probe = folder / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_SIZE))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return error.errno
    return None


_ATTEMPTS = 100
"""Times that a folder is published anew because another run has saved the same one at the same time."""

_leftovers: set[Path] = set()
"""Hidden folders of this process that could not be deleted."""


@contextmanager
def staging(
    final: str | os.PathLike[str], *, step: int, run_id: str | None = None, checksums: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Yield an empty folder that becomes ``final`` when the block ends, and leaves no trace if it fails.

    Args:
        final: The checkpoint folder. One that exists is replaced.
        step: The update step, for the marker.
        run_id: The run that writes, for the marker; see ``rotation.OwnedCheckpoints``.
        checksums: Those of files that need not be read, looked up at the end.

    Raises:
        CheckpointWriteError: If the folder cannot be written; earlier checkpoints are untouched.
    """
    target = Path(final)
    advice = f"Earlier checkpoints are untouched. Check the free space and the permissions of `{target.parent}`."
    with _hidden_folder_of(target, advice) as staged:
        yield staged
        publish(staged, target, step=step, run_id=run_id, checksums=checksums)


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
            _mark(staged, step=step, run_id=None)
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


def publish(
    staged: Path, final: Path, *, step: int, run_id: str | None, checksums: Mapping[str, str] | None = None
) -> None:
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


def _mark(staged: Path, *, step: int, run_id: str | None, checksums: Mapping[str, str] | None = None) -> None:
    """Flush the files of ``staged``, then a marker that lists them."""
    files = [path for path in staged.rglob("*") if path.is_file()]
    for path in files:
        begin_writing(path)
    sums = checksums_of(staged, known=checksums)  # read from the page cache while the disk writes
    flush(staged)
    write_marker(staged, step=step, run_id=run_id, checksums=sums)
    flush_file(staged / LIGHTNING_MARKER_NAME)
    with suppress(OSError):
        for path in [*files, staged / LIGHTNING_MARKER_NAME]:
            drop_cached(path)


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
    try:
        hidden.path.rename(hidden.final)
    except FileNotFoundError:  # another node does the same in a shared folder
        return
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


# Writing one checkpoint folder from several ranks, which is published once per disk.


def begin_on_all_ranks(
    stack: ExitStack,
    final: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None,
    launch: Launch,
    writes: bool,
    group: ProcessGroup | None = None,
) -> Path:
    """Return on each rank a folder that becomes ``final`` when every rank closes its ``stack``.

    Rank 0 creates and publishes it. On other nodes local rank 0 does too, if the node does not see rank 0's folder, or
    writes a complete checkpoint itself. ``stack`` may be closed when all ranks have written; see
    :func:`raise_on_all_ranks`.

    Args:
        stack: Publishes the folder, or deletes it on an error.
        final: The checkpoint folder; an existing one is replaced.
        step: The update step, for the completion marker.
        run_id: The run that writes, for the completion marker.
        launch: Rank and world size.
        writes: Whether this rank writes the files that are equal on all ranks.
        group: The process group of the thread that closes ``stack``. Default: the group of training.

    Raises:
        CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
    """
    checksums: dict[str, str] = {}

    def stage() -> Path:
        return stack.enter_context(staging(final, step=step, run_id=run_id, checksums=checksums))

    # Names are shared, not paths: each rank finds the folder beside its own `final`.
    with raise_on_all_ranks() as first:
        if launch.rank == 0:
            first.own = stage().name
    shared = Path(final).with_name(first.all[0])
    if launch.num_nodes == 1:
        return shared
    with raise_on_all_ranks() as of_nodes:
        if launch.rank != 0 and launch.local_rank == 0 and (writes or not shared.is_dir()):
            of_nodes.own = stage().name
    others_publish = launch.rank != 0 and launch.local_rank == 0 and of_nodes.own is None
    of_node = of_nodes.all[launch.rank - launch.local_rank]
    staged = shared if of_node is None else shared.with_name(of_node)
    node = range(launch.rank, launch.rank + launch.local_world_size)
    stack.enter_context(_flushing(staged if others_publish else None, node, checksums, group))
    return staged


@contextmanager
def _flushing(
    staged: Path | None, ranks: Collection[int], checksums: dict[str, str], group: ProcessGroup | None
) -> Iterator[None]:
    """Context that every rank enters, and that flushes ``staged`` at its end, before any rank goes on.

    Rank 0, which publishes a folder that all nodes write into, can flush what its own node has written only, and would
    have to fetch the rest to make its checksums: those of the files of ``ranks`` are made here.
    """
    yield
    with raise_on_all_ranks(group) as made:
        if staged is not None:
            made.own = checksums_of(staged, ranks=ranks)
            flush(staged)
    for others in filter(None, made.all):
        checksums.update(others)


def wait_for(saver: BackgroundTasks) -> None:
    """Wait until no rank writes in the background; every rank has to call it.

    Raises:
        Exception: The error of the last save, on the rank where it happened; on the others a CheckpointError, a
            CheckpointWriteError if the file system refused the write.
    """
    failure: Exception | None = None
    try:
        saver.wait()
    except Exception as error:
        failure = error
    failures = collectives.gather_objects([None if failure is None else _described(failure)])
    if failure is not None:
        raise failure
    for others in filter(None, failures):
        raise others


@dataclass
class Exchange:
    """Values that the ranks exchange at the end of a block that fails on all of them or on none.

    Attributes:
        own: This rank's value; the block sets it.
        all: What the ranks have told, by rank, once the block has ended.
    """

    own: Any = None
    all: list[Any] = field(default_factory=list)


@contextmanager
def raise_on_all_ranks(
    group: ProcessGroup | None = None, *, fails_on_all: bool = False, place: Path | None = None
) -> Iterator[Exchange]:
    """Run the block on every rank; if a file cannot be written on one, raise on all.

    Args:
        group: The process group of a background thread: an error of any kind then raises on all ranks, since no rank
            may wait for a thread that has ended. Default: the group of training.
        fails_on_all: Whether a block that fails on one rank fails on all: then they communicate only if it does.
        place: The folder that the block writes into, where the number of a failure can be found.

    Raises:
        CheckpointWriteError: If any rank could not write.
        CheckpointError: If another rank's thread ended with another error.
    """
    exchange = Exchange()
    if collectives.get_world_size() == 1:
        yield exchange
        exchange.all = [exchange.own]
        return
    failure: Exception | None = None
    try:
        yield exchange
    except Exception as error:
        if group is None and not is_write_failure(error):
            give_up(error)  # before the folder is deleted, in which the others write
            raise
        failure = error
    if failure is None and fails_on_all:
        return
    described = None if failure is None else _described(failure, place)
    told = collectives.gather_objects([(described, exchange.own)], group)
    _raise_first([failed for failed, _ in told], failure)
    exchange.all = [own for _, own in told]


def _raise_first(failures: Sequence[Exception | None], failure: Exception | None) -> None:
    """Raise the first rank's failure, if any: ``failure`` itself if it is this rank's."""
    for rank, described in enumerate(failures):
        if described is not None:
            fits = type(described) is CheckpointError or isinstance(failure, WriteError)
            if failure is not None and rank == collectives.get_rank() and fits:
                raise failure
            raise described from failure


def _described(failure: Exception, place: Path | None = None) -> CheckpointError | CheckpointWriteError:
    """Return the error that other ranks raise for ``failure`` of this rank."""
    if isinstance(failure, CheckpointWriteError):
        return failure
    rank = collectives.get_rank()
    if is_write_failure(failure):
        number, file = errno_of(failure, place), getattr(failure, "filename", None)
        close_files(failure)
        name = None if file is None else os.fsdecode(file)
        return CheckpointWriteError(f"Rank {rank} could not write: {failure}", errno=number, filename=name)
    return CheckpointError(f"Rank {rank} could not save: {type(failure).__name__}: {failure}")
