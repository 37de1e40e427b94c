"""One checkpoint folder, written from the parts that others supply: staged, published, then rotated or pushed."""

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
    """One of the files, or groups of files, that make a checkpoint."""

    write: Callable[[Path], object]
    """Writes into the staged folder that it is given. Bound anew for each save: methods may be replaced in between."""
    deferrable: bool = False
    """Whether its files may be written later from a snapshot; only where no method that it runs is a subclass's."""


def _by_nobody() -> bool:
    return False


class CheckpointWriter:
    """Writes checkpoints, each complete or not at all, synchronously or in the background.

    Attributes:
        writes: Through it parts write their files, so that they can be deferred.
        saver: What writes in the background.
        ledger: Which checkpoints are the run's; None before the first run, and where nothing is rotated.
        last_step: The update step of the last checkpoint that ``write`` wrote; None where the run has written none.
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
        must_finish: Callable[[], bool] = _by_nobody,
    ) -> None:
        """Write the checkpoint ``folder``; every rank has to call it.

        In the background the folder appears later: its content is copied in host memory, as many bytes as the
        checkpoint has, and written while training continues, one checkpoint at a time. A part that may not wait is
        written synchronously, and published with the rest.

        Args:
            folder: Its name. A folder that exists is replaced.
            parts: What to write, in this order.
            step: The update step.
            launch: Which rank this is, of how many.
            writes_files: Whether this rank writes what is the same on all.
            background: Whether to return before the folder is there; needs a full model on each rank.
            then: Called with ``folder`` once it is published: where files are written, in the background's thread;
                synchronously on every rank.
            must_finish: Asked in the background alone, when it has begun: whether somebody on this rank expects the
                folder to be there when this returns. If so on any, all wait.

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
            with multi_process.failing_together():  # published only once all have written
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
        for act in then:
            act(folder)

    def _publish(
        self, publication: ExitStack, deferred: list[Write], folder: Path, then: Sequence[Callable[[Path], object]]
    ) -> None:
        """Make the ``deferred`` calls and publish ``folder``, in the background's thread."""
        with publication:
            for write in deferred:
                write()
        for act in then:
            act(folder)

    def write_alone(self, folder: Path, parts: Iterable[Part], *, step: int) -> None:
        """Write the checkpoint ``folder`` from this process alone, synchronously; no other rank is asked.

        Args:
            folder: Its name. A folder that exists is replaced.
            parts: What to write, in this order.
            step: The update step.

        Raises:
            CheckpointWriteError: If it cannot be written; earlier checkpoints are untouched.
        """
        with publish.staging(folder, step=step, run_id=self._run_id) as staged:
            for part in parts:
                part.write(staged)

    def wait(self) -> None:
        """Return once no rank writes in the background; every rank has to call it.

        Raises:
            Exception: The error of the last save, on every rank; see ``multi_process.wait_for``.
        """
        multi_process.wait_for(self.saver)

    @staticmethod
    def check_disks(output_dir: str, *, launch: Launch, save_async: bool) -> None:
        """Refuse to save in the background where each node has a disk of its own; every rank has to call it.

        A checkpoint is complete once all ranks have written, which a thread of one process cannot ask the others.

        Args:
            output_dir: Where checkpoints go.
            launch: On how many nodes the run is.
            save_async: The field's value, for the error; the environment may have asked for it.

        Raises:
            TrainerSetupError: On every rank.
        """
        if launch.num_nodes > 1 and not multi_process.is_shared(output_dir):
            raise TrainerSetupError(
                f"`save_async={save_async}` (or HF_COMPAT_ASYNC_SAVE) is not supported with "
                f"`output_dir={output_dir!r}`, which is not on a disk that all nodes share. Set "
                "`save_async=False`, or choose a folder that they share."
            )
