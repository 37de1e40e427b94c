"""``ResumableLoader``: a train loader that resumes in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from hf_compat.checkpoint.rng import rng_state, set_rng_state
from hf_compat.errors import DataError
from hf_compat.metrics import has_length

__all__ = ["ResumableLoader"]


class ResumableLoader:
    """Yields the batches of a loader; its state is the position in the epoch, with the random states there.

    Lightning saves its state with a checkpoint. On resume it restores the random states from the start of the epoch,
    skips the batches already trained on, then restores the random states of the checkpoint. Skipped batches are loaded,
    so that random numbers drawn for them are drawn again.

    Args:
        loader: A loader with a length, whose order follows from the random generators of torch, numpy and python.

    Raises:
        DataError: If it has no length.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if not has_length(loader):
            raise DataError("ResumableLoader: `loader` has no length. Give its dataset a `__len__`.")
        self.loader = loader
        self._done = 0
        self._at_start: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, of a resumed one those that are left."""
        resumed, self._resumed = self._resumed, None
        skipped = 0 if resumed is None else resumed["done"]
        if skipped == len(self):
            skipped = 0
        if skipped and resumed is not None:
            set_rng_state(resumed["at_start"])
        self._at_start, self._done = rng_state(), 0
        for batch in self.loader:
            self._done += 1
            if self._done == skipped and resumed is not None:
                set_rng_state(resumed["now"])
            if self._done > skipped:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the random states."""
        return {"done": self._done, "at_start": self._at_start, "now": rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next epoch at the position of ``state``."""
        self._resumed = state
