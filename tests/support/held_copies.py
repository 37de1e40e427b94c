"""Late copies of checkpoints that are made as late as possible."""

from __future__ import annotations

import threading
from typing import Any

from hf_compat.checkpoint.host_copy import LateCopies

__all__ = ["HeldCopies"]


class HeldCopies(LateCopies):
    """Makes late copies when the next update waits for them.

    Attributes:
        count: Of how many checkpoints.
    """

    def __init__(self) -> None:
        super().__init__()
        self.awaited, self.count = threading.Event(), 0

    def _make(self, *given: Any) -> None:
        self.awaited.wait(60)
        self.count += 1
        super()._make(*given)

    def finish(self) -> None:
        self.awaited.set()
        super().finish()
        self.awaited.clear()
