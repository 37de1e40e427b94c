"""Late copies of checkpoints that are made as late as possible."""

from __future__ import annotations

from hf_compat.checkpoint.host_copy import LateCopies

__all__ = ["HeldCopies"]


class HeldCopies(LateCopies):
    """Makes late copies when the next update waits for them.

    Attributes:
        count: Of how many checkpoints.
    """

    count = 0

    def make(self) -> None:
        if self._pending:
            self.count += 1
            assert self._is_update_due.wait(60)
        super().make()
