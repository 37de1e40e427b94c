"""The first batches of a data loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Subset

from hf_compat.data.loader import PreparedDataLoader
from hf_compat.metrics import has_length

__all__ = ["FirstBatches"]


class FirstBatches:
    """A data loader cut off after its first ``batches`` batches; everything else is the wrapped loader's.

    Args:
        loader: The loader.
        batches: How many there are at most, on each rank.
        ranks: Ranks that get different batches.
    """

    def __init__(self, loader: Any, batches: int, ranks: int) -> None:
        self._loader = loader
        self._batches = batches
        self._ranks = ranks

    def __len__(self) -> int:
        return min(self._batches, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        return self._first(iter(self._loader))

    def _first(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from itertools.islice(batches, self._batches)
        if isinstance(self._loader, PreparedDataLoader):
            self._loader.in_pass = False  # though there may be more batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["_loader"], name)

    @property
    def dataset(self) -> Any:
        """The dataset cut to the number of samples in those batches, if known; which samples they are is not."""
        dataset: Any = self._loader.dataset
        own = getattr(self._loader, "batch_size", None)
        size: int | None = getattr(self._loader, "total_batch_size", own and own * self._ranks)
        if size is None or not has_length(dataset):
            return dataset
        samples: Any = dataset
        return Subset(samples, range(min(len(dataset), self._batches * size)))
