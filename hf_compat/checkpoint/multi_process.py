"""Writing one checkpoint folder from several ranks, which is published once per disk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks
from hf_compat.checkpoint.checksums import Checksums
from hf_compat.checkpoint.write_failures import close_files, errno_of, is_write_failure
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.oom_consensus import give_up
from hf_compat.errors import CheckpointError, CheckpointWriteError

__all__ = ["Exchange", "begin", "raise_on_all_ranks", "wait_for"]


def begin(
    stack: ExitStack,
    final: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None,
    launch: Launch,
    writes: bool,
    checksums: Checksums,
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
        checksums: Checksums of files that need not be read again.
        group: The process group of the thread that closes ``stack``. Default: the group of training.

    Raises:
        CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
    """

    def stage() -> Path:
        return stack.enter_context(publish.staging(final, step=step, run_id=run_id, checksums=checksums))

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
    staged: Path | None, ranks: Collection[int], checksums: Checksums, group: ProcessGroup | None
) -> Iterator[None]:
    """Context that every rank enters, and that flushes ``staged`` at its end, before any rank goes on.

    Rank 0, which publishes a folder that all nodes write into, can flush what its own node has written only, and would
    have to fetch the rest to make its checksums: those of the files of ``ranks`` are made here.
    """
    yield
    with raise_on_all_ranks(group) as made:
        if staged is not None:
            made.own = checksums.of_folder(staged, ranks=ranks)
            publish.flush(staged)
    for others in filter(None, made.all):
        checksums.take(others)


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
            fits = type(described) is CheckpointError or isinstance(failure, CheckpointWriteError)
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
