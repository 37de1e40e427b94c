"""``CheckpointWriter``: writes a checkpoint folder from its parts, synchronously or in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hf_compat.checkpoint import multi_process, publish
from hf_compat.checkpoint.background import BackgroundSaver, Write, Writes
from hf_compat.checkpoint.rotation import Ledger
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError

__all__ = ["CheckpointWriter", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a group of files, of a checkpoint."""

    write: Callable[[Path], object]
    """Writes into the given folder. Created for each save, since methods may be replaced in between."""
    deferrable: bool = False
    """Whether it may be written in the background, from a snapshot; not if a subclass overrides its methods."""


def _never() -> bool:
    return False


class CheckpointWriter:
    """Writes checkpoints, synchronously or in the background; a folder appears only when it is complete.

    Attributes:
        writes: Writes files of the parts, immediately or deferred.
        saver: Runs deferred writes in a thread.
        ledger: The run's checkpoints; None before the first run, and if checkpoints are not rotated.
        last_step: The update step of the last checkpoint; None if the run has not written any.
    """

    def __init__(self) -> None:
        self.writes = Writes()
        self.saver = BackgroundSaver()
        self.ledger: Ledger | None = None
        self.last_step: int | None = None

    @property
    def _run_id(self) -> str | None:
        return None if self.ledger is None else self.ledger.run_id

    def write(
        self,
        folder: Path,
        parts: Iterable[Part],
        *,
        step: int,
        launch: Launch,
        writes_files: bool,
        background: bool,
        then: Sequence[Callable[[Path], object]] = (),
        must_finish: Callable[[], bool] = _never,
    ) -> None:
        """Write the checkpoint ``folder``; every rank has to call it.

        In the background, the states are copied to the CPU, which needs as much memory as the checkpoint has bytes, and
        written by a thread, one checkpoint at a time. Parts that are not deferrable are written synchronously. The
        folder appears when all parts are written.

        Args:
            folder: The folder; an existing one is replaced.
            parts: The parts, in the order in which they are written.
            step: The update step.
            launch: Rank and world size.
            writes_files: Whether this rank writes the files that are equal on all ranks.
            background: Write in the background; needs the full model on each rank.
            then: Called with the complete folder: in the background by the thread that writes, otherwise on every rank.
            must_finish: Called in the background only: whether this rank needs the complete folder when this method
                returns. If any rank does, all wait.

        Raises:
            CheckpointWriteError: On every rank, if any could not write; earlier checkpoints are untouched.
        """
        deferred: list[Write] = []
        if background:
            self.wait()
        with ExitStack() as stack:
            staged = multi_process.begin(
                stack, folder, step=step, run_id=self._run_id, launch=launch, writes=writes_files
            )
            with multi_process.failing_together():  # the folder is published when all ranks have written
                for part in parts:
                    with self.writes.deferred(deferred) if background and part.deferrable else nullcontext():
                        part.write(staged)
            publication = stack.pop_all()
        if background:
            if writes_files:
                self.saver.start(partial(self._publish, publication, deferred, folder, then))
            if any(collectives.gather_objects([must_finish()])):
                self.wait()
            self.last_step = step
            return
        with multi_process.failing_together(), publication:
            pass
        self.last_step = step
        for call in then:
            call(folder)

    def _publish(
        self, publication: ExitStack, deferred: list[Write], folder: Path, then: Sequence[Callable[[Path], object]]
    ) -> None:
        """Run the ``deferred`` writes and publish ``folder``; called in the background thread."""
        with publication:
            for write in deferred:
                write()
        for call in then:
            call(folder)

    def write_alone(self, folder: Path, parts: Iterable[Part], *, step: int) -> None:
        """Write the checkpoint ``folder`` on this rank only, synchronously and without communication.

        Args:
            folder: The folder; an existing one is replaced.
            parts: The parts, in the order in which they are written.
            step: The update step.

        Raises:
            CheckpointWriteError: If it cannot be written; earlier checkpoints are untouched.
        """
        with publish.staging(folder, step=step, run_id=self._run_id) as staged:
            for part in parts:
                part.write(staged)

    def wait(self) -> None:
        """Wait until no rank writes in the background; every rank has to call it.

        Raises:
            Exception: The error of the last save, on every rank; see ``multi_process.wait_for``.
        """
        multi_process.wait_for(self.saver)

    @staticmethod
    def check_disks(output_dir: str, *, launch: Launch, save_async: bool) -> None:
        """Check that nodes share a disk, which saving in the background needs; every rank has to call it.

        A checkpoint is complete when all ranks have written, which a background thread cannot find out.

        Args:
            output_dir: The folder of the checkpoints.
            launch: Rank, world size and number of nodes.
            save_async: The field's value, for the message.

        Raises:
            TrainerSetupError: On every rank, if they do not.
        """
        if launch.num_nodes > 1 and not multi_process.is_shared(output_dir):
            raise TrainerSetupError(
                f"`save_async={save_async}` (or HF_COMPAT_ASYNC_SAVE) is not supported with "
                f"`output_dir={output_dir!r}`, which is not on a disk that all nodes share. Set "
                "`save_async=False`, or use a folder on a shared disk."
            )
