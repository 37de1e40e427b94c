"""A writer of checkpoints whose saves in the background are written as late as possible."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.background import CheckpointFile, Snapshot
from hf_compat.checkpoint.writer import CheckpointWriter
from tests.support.processes import PATIENCE

__all__ = ["HeldWriter"]


class HeldWriter(CheckpointWriter):
    """Can finish a save in the background only once the next one, or the end, waits for it; for one process.

    Attributes:
        most: How many saves were being written at the same time, at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._awaited, self._writing = threading.Event(), 0

    def wait(self) -> None:
        """Let the save under way be written, and wait for it."""
        self._awaited.set()
        super().wait()
        self._awaited.clear()

    def wait_here(self) -> None:
        """Do the same."""
        self._awaited.set()
        super().wait_here()
        self._awaited.clear()

    def _publish(self, publication: ExitStack, snapshot: Snapshot, folder: Path, then: Any) -> None:
        self._writing += 1
        self.most = max(self.most, self._writing)
        snapshot.files.insert(0, CheckpointFile(lambda *_: self._awaited.wait(PATIENCE), None, Path()))
        super()._publish(publication, snapshot, folder, then)
        self._writing -= 1
