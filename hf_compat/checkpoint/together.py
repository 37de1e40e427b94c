"""Writing one checkpoint folder from several processes: all write into it, then it is published once on each disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hf_compat import collectives
from hf_compat.arguments.launch import Launch
from hf_compat.checkpoint import publish
from hf_compat.errors import CheckpointWriteError

__all__ = ["staging"]


@contextmanager
def staging(
    final: str | os.PathLike[str], *, step: int, run_id: str | None, launch: Launch, writes: bool
) -> Iterator[Path]:
    """Yield a folder on each process that becomes ``final`` when the block has ended on all of them.

    The main process makes it and publishes it. So does the first process of every other node that does not see that
    folder, as its disk is its own, or that is to write a whole checkpoint itself.

    Args:
        final: The checkpoint folder. One that exists is replaced.
        step: The update step, for the completion marker.
        run_id: The run that writes, for the completion marker.
        launch: Which process this is.
        writes: Whether this process writes what is the same on all.

    Raises:
        CheckpointWriteError: On every process, if any could not write; checkpoints written before are untouched.
    """
    if launch.size == 1:
        with publish.staging(final, step=step, run_id=run_id) as staged:
            yield staged
        return
    with ExitStack() as stack:
        own = None
        with _failing_together():
            if launch.rank == 0:
                own = stack.enter_context(publish.staging(final, step=step, run_id=run_id))
        shared = collectives.broadcast_object(own)
        with _failing_together():
            if launch.rank != 0 and launch.local_rank == 0 and (writes or not shared.is_dir()):
                own = stack.enter_context(publish.staging(final, step=step, run_id=run_id))
        staged_by = collectives.gather_objects([own])
        with _failing_together():  # published only once all have written
            yield staged_by[launch.rank - launch.local_rank] or shared
        published = stack.pop_all()
    with _failing_together(), published:
        pass


@contextmanager
def _failing_together() -> Iterator[None]:
    """Run the block on every process; where a file could not be written on one, raise on all.

    Raises:
        CheckpointWriteError: If another process could not write.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if not (isinstance(error, CheckpointWriteError) or publish.is_write_failure(error)):
            raise
        failure = error
    told = collectives.gather_objects([None if failure is None else str(failure)])
    if isinstance(failure, CheckpointWriteError):
        raise failure
    if failure is not None:
        raise CheckpointWriteError(f"Process {collectives.process_number()} could not write: {failure}") from failure
    if any(told):
        raise CheckpointWriteError(next(text for text in told if text))
