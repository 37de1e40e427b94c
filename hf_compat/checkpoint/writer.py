"""``CheckpointWriter``: writes a checkpoint folder from its parts, synchronously or in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks, CheckpointFileWriter, Deferred
from hf_compat.checkpoint.flushing import Checksums, flushing_early
from hf_compat.checkpoint.rotation import OwnedCheckpoints
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a group of files, of a checkpoint."""

    write: Callable[[Path], object]
    """Writes into the given folder. Created for each save, since methods may be replaced in between."""
    deferrable: bool = False
    """Whether it may be written in the background, from a snapshot, or while the next ones are written; not if a
    subclass overrides its methods."""


def _never() -> bool:
    return False


def _working_directory() -> Path:
    """Return the working directory; the empty path if it was deleted, which absolute paths do not need."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


class CheckpointWriter:
    """Writes checkpoints, synchronously or in the background; a folder appears only when it is complete.

    Attributes:
        file_writer: Writes files of the parts, immediately or deferred.
        saver: Runs deferred writes in a thread.
        remover: Removes the files of deleted checkpoints in a thread: those of one save before the next begins.
        owned: The run's checkpoints; None before the first run, and if checkpoints are not rotated.
        last_step: The update step of the last checkpoint; None if the run has not written any.
        begun_in: The working directory in which a save in the background was begun, for relative paths in its thread;
            otherwise the empty path.
        is_writing: Whether this thread is inside ``writing``.
    """

    def __init__(self) -> None:
        self.file_writer = CheckpointFileWriter()
        self.saver = BackgroundTasks()
        self.remover = BackgroundTasks()
        self.owned: OwnedCheckpoints | None = None
        self.last_step: int | None = None
        self.begun_in = Path()
        self.is_writing = False
        self._is_in_background = False  # not known to have ended on every rank: the same on all

    @property
    def _run_id(self) -> str | None:
        return None if self.owned is None else self.owned.run_id

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context of what writes checkpoints, or waits for one, in this thread, and is not to be interrupted."""
        before, self.is_writing = self.is_writing, True
        try:
            yield
        finally:
            self.is_writing = before

    def write(
        self,
        folder: Path,
        parts: Iterable[Part],
        *,
        step: int,
        launch: Launch,
        writes_files: bool,
        background: bool,
        timeout: timedelta = timedelta(minutes=30),
        then: Sequence[Callable[[Path], object]] = (),
        must_finish: Callable[[], bool] = _never,
    ) -> None:
        """Write the checkpoint ``folder``; every rank has to call it.

        In the background, each rank copies the states that it writes to the CPU, which needs as much memory as its
        files have bytes, until the end of the run, and a thread writes them, one checkpoint at a time. Parts that are
        not deferrable are written synchronously. The folder appears when every rank has written and flushed all parts.

        Args:
            folder: The folder; an existing one is replaced, or the one that a link leads to.
            parts: The parts, in the order in which they are written.
            step: The update step.
            launch: Rank and world size.
            writes_files: Whether this rank writes the files that are equal on all ranks.
            background: Write in the background.
            timeout: How long, in the background, the threads of two ranks wait for each other.
            then: Called with the complete folder: in the background by the threads of ranks that write the files that
                are equal on all, otherwise on every rank.
            must_finish: Called in the background only: whether this rank needs the complete folder when this method
                returns. If any rank does, all wait.

        Raises:
            CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
        """
        deferred, checksums = Deferred(collectives.background_group(timeout) if background else None), Checksums()
        if background:
            self.wait()
            self.begun_in = _working_directory()
            folder = self.begun_in / folder
        self.remover.wait()
        snapshot = self.file_writer.dropping_a_failed_snapshot() if background else nullcontext()
        # Of all ranks' errors rank 0's is raised, which names the folder. Only publishing can fail on one rank alone.
        with snapshot, publish.raise_on_all_ranks(fails_on_all=background):
            with ExitStack() as stack:
                staged = publish.begin_on_all_ranks(
                    stack,
                    publish.target_of(folder),
                    step=step,
                    run_id=self._run_id,
                    launch=launch,
                    writes=writes_files,
                    checksums=checksums,
                    group=deferred.group,
                )
                deferred.place = staged
                flushes = launch.local_rank == 0 and not background
                flushing = flushing_early(staged, checksums) if flushes else nullcontext()
                # It is published when all ranks have written.
                with publish.raise_on_all_ranks(place=staged) as needs, flushing:
                    self._write_parts(parts, staged, deferred if background else None)
                    needs.own = background and must_finish()
                publication = stack.pop_all()
            if not background:
                with publication:
                    pass
                self._note_saved(folder)
        if background:
            self._is_in_background = True
            self.saver.start(partial(self._publish, publication, deferred, folder, then if writes_files else ()))
            if any(needs.all):
                self.wait()
            self.last_step = step
            return
        self.last_step = step
        for call in then:
            call(folder)

    def _write_parts(self, parts: Iterable[Part], staged: Path, deferred: Deferred | None) -> None:
        """Write ``parts`` into the folder ``staged``; put off what can be if ``deferred`` is given."""
        file_writer = self.file_writer
        with file_writer.checkpoint():
            for part in parts:
                mode: AbstractContextManager[None] = nullcontext()
                if not part.deferrable:
                    file_writer.finish_concurrent()  # it finds all files before it, as with transformers
                elif deferred is None:
                    mode = file_writer.allowing_concurrent()
                else:
                    mode = file_writer.deferred(deferred)
                with mode:
                    part.write(staged)

    def _publish(
        self, publication: ExitStack, deferred: Deferred, folder: Path, then: Sequence[Callable[[Path], object]]
    ) -> None:
        """Make the ``deferred`` writes, and publish ``folder`` once every rank has; called in the background thread."""
        group = deferred.group
        try:
            # The ranks agree twice, innermost first: every rank has written, rank 0 has published. What fails on one of
            # them is raised by all at that point.
            writing = publish.raise_on_all_ranks(group, place=deferred.place)
            with publish.raise_on_all_ranks(group), publication, writing:
                deferred.write()
        finally:
            self.file_writer.buffers.give_back()
        self._note_saved(folder)
        for call in then:
            call(folder)

    def _note_saved(self, folder: Path) -> None:
        if self.owned is not None:
            self.owned = self.owned.with_saved(folder)

    def write_alone(self, folder: Path, parts: Iterable[Part], *, step: int) -> None:
        """Write the checkpoint ``folder`` on this rank only, synchronously and without communication.

        Args:
            folder: The folder; an existing one is replaced.
            parts: The parts, in the order in which they are written.
            step: The update step.

        Raises:
            CheckpointWriteError: If it cannot be written; earlier checkpoints are untouched.
        """
        checksums = Checksums()
        staging = publish.staging(publish.target_of(folder), step=step, run_id=self._run_id, checksums=checksums)
        with staging as staged, flushing_early(staged, checksums):
            self._write_parts(parts, staged, None)

    def end_run(self) -> None:
        """Wait until deleted checkpoints and what failed saves left are removed, and free the memory of snapshots."""
        self.begun_in = Path()
        self.remover.wait()
        publish.delete_leftovers()
        self.file_writer.buffers.clear()

    def wait(self) -> None:
        """Wait until no rank writes in the background; every rank has to call it.

        Raises:
            Exception: The error of the last save, on every rank; see ``publish.wait_for``.
        """
        is_in_background, self._is_in_background = self._is_in_background, False
        if is_in_background:
            publish.wait_for(self.saver)

    def wait_here(self) -> None:
        """Wait until this rank does not write in the background.

        Raises:
            Exception: The error of the last save.
        """
        self.saver.wait()
