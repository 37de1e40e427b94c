"""``CheckpointWriter``: writes a checkpoint folder, synchronously or in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import BackgroundTasks, HostBuffers, Put, Snapshot
from hf_compat.checkpoint.flushing import flushing_early
from hf_compat.checkpoint.rotation import OwnedCheckpoints
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch

Value = TypeVar("Value")


def _working_directory() -> Path:
    """Return the working directory; the empty path if it was deleted, which absolute paths do not need."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


class CheckpointWriter:
    """Writes checkpoints, synchronously or in the background; a folder appears only when it is complete.

    Attributes:
        buffers: The memory of snapshots.
        saver: Writes a snapshot in a thread.
        remover: Removes the files of deleted checkpoints in a thread: those of one save before the next begins.
        owned: The run's checkpoints; None before the first run, and if checkpoints are not rotated.
        begun_in: The working directory in which a save in the background was begun, for relative paths in its thread;
            otherwise the empty path.
        is_writing: Whether this thread is inside ``writing``.
    """

    def __init__(self) -> None:
        self.buffers = HostBuffers()
        self.saver = BackgroundTasks()
        self.remover = BackgroundTasks()
        self.owned: OwnedCheckpoints | None = None
        self.begun_in = Path()
        self.is_writing = False
        self._is_in_background = False  # not known to have ended on every rank: the same on all
        self._made: dict[str, Any] | None = None  # for all files of the checkpoint that is being saved

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

    def once(self, name: str, make: Callable[[], Value]) -> Value:
        """Return what ``make`` returns, called once for all files of a checkpoint; outside of a save each time."""
        if self._made is None:
            return make()
        if name not in self._made:
            self._made[name] = make()
        value: Value = self._made[name]
        return value

    @contextmanager
    def _one_checkpoint(self) -> Iterator[None]:
        before, self._made = self._made, {}
        try:
            yield
        finally:
            self._made = before

    def write(
        self,
        folder: Path,
        save: Callable[[Path], object],
        *,
        step: int,
        launch: Launch,
        writes_files: bool,
    ) -> None:
        """Write the checkpoint ``folder``; every rank has to call it.

        The folder appears when every rank has written and flushed all files.

        Args:
            folder: The folder; an existing one is replaced, or the one that a link leads to.
            save: Writes the files into the folder that it gets.
            step: The update step.
            launch: Rank and world size.
            writes_files: Whether this rank writes the files that are equal on all ranks.

        Raises:
            CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
        """
        self.remover.wait()
        # Of all ranks' errors rank 0's is raised, which names the folder. Only publishing can fail on one rank alone.
        with publish.raise_on_all_ranks(), ExitStack() as stack:
            staged = publish.begin_on_all_ranks(
                stack,
                publish.target_of(folder),
                step=step,
                run_id=self._run_id,
                launch=launch,
                writes=writes_files,
            )
            flushing = flushing_early(staged) if launch.local_rank == 0 else nullcontext()
            # It is published when all ranks have written.
            with publish.raise_on_all_ranks(place=staged), flushing, self._one_checkpoint():
                save(staged)
        self._note_saved(folder)

    def write_in_background(
        self,
        folder: Path,
        collect: Callable[[Path, Put], object],
        *,
        step: int,
        launch: Launch,
        writes_files: bool,
        timeout: timedelta = timedelta(minutes=30),
        then: Callable[[Path], object] | None = None,
        must_finish: Callable[[], bool] | None = None,
    ) -> None:
        """Write the checkpoint ``folder`` in a thread, one at a time; every rank has to call it.

        Each rank copies what it writes to the CPU, which needs as much memory as its files have bytes, until the end
        of the run. The folder appears when every rank has written and flushed all files.

        Args:
            folder: The folder; an existing one is replaced, or the one that a link leads to.
            collect: Gives each file to its second argument, or writes it into the folder that it gets.
            step: The update step.
            launch: Rank and world size.
            writes_files: Whether this rank writes the files that are equal on all ranks.
            timeout: How long the threads of two ranks wait for each other.
            then: Called with the complete folder, by the threads of ranks that write the files that are equal on all.
            must_finish: Returns whether this rank needs the complete folder when this method returns. If any does, all
                wait. Default: it does not.

        Raises:
            CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
        """
        snapshot = Snapshot(self.buffers, collectives.background_group(timeout))
        self.wait()
        self.begun_in = _working_directory()
        folder = self.begun_in / folder
        self.remover.wait()
        with self._dropping_a_failed_snapshot(), publish.raise_on_all_ranks(fails_on_all=True), ExitStack() as stack:
            snapshot.folder = publish.begin_on_all_ranks(
                stack,
                publish.target_of(folder),
                step=step,
                run_id=self._run_id,
                launch=launch,
                writes=writes_files,
                group=snapshot.group,
            )
            with publish.raise_on_all_ranks(place=snapshot.folder) as needs, self._one_checkpoint():
                collect(snapshot.folder, snapshot.add)
                needs.own = must_finish is not None and must_finish()
            publication = stack.pop_all()
        self._is_in_background = True
        self.saver.start(partial(self._publish, publication, snapshot, folder, then if writes_files else None))
        if any(needs.all):
            self.wait()

    @contextmanager
    def _dropping_a_failed_snapshot(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.buffers.give_back()
            raise

    def _publish(
        self, publication: ExitStack, snapshot: Snapshot, folder: Path, then: Callable[[Path], object] | None
    ) -> None:
        """Write the files of ``snapshot``, and publish ``folder`` once every rank has; called in the thread."""
        group = snapshot.group
        try:
            # The ranks agree twice, innermost first: every rank has written, rank 0 has published. What fails on one of
            # them is raised by all at that point.
            writing = publish.raise_on_all_ranks(group, place=snapshot.folder)
            with publish.raise_on_all_ranks(group), publication, writing:
                snapshot.write()
        finally:
            self.buffers.give_back()
        self._note_saved(folder)
        if then is not None:
            then(folder)

    def _note_saved(self, folder: Path) -> None:
        if self.owned is not None:
            self.owned = self.owned.with_saved(folder)

    def write_alone(self, folder: Path, save: Callable[[Path], object], *, step: int) -> None:
        """Write the checkpoint ``folder`` on this rank only, synchronously and without communication.

        Args:
            folder: The folder; an existing one is replaced.
            save: Writes the files into the folder that it gets.
            step: The update step.

        Raises:
            CheckpointWriteError: If it cannot be written; earlier checkpoints are untouched.
        """
        staging = publish.staging(publish.target_of(folder), step=step, run_id=self._run_id)
        with staging as staged, flushing_early(staged), self._one_checkpoint():
            save(staged)

    def end_run(self) -> None:
        """Wait until deleted checkpoints and what failed saves left are removed, and free the memory of snapshots."""
        self.begun_in = Path()
        self.remover.wait()
        publish.delete_leftovers()
        self.buffers.clear()

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
