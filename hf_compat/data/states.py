"""Where a stream is, as it says itself, so that a resumed run need not read what comes before.

A data set with ``state_dict`` and ``load_state_dict``, such as a stream of ``datasets``, is asked after each batch, in
the worker that reads it. The state that counts is the one after the batch in use, not after those loaded ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

__all__ = ["ResumedWorker", "StatedBatch", "StatingCollator", "StreamStates", "resumed_stream", "states_itself"]


def states_itself(dataset: Any) -> bool:
    """Return whether ``dataset`` is a stream that can say where it is, and go on from there without loss."""
    return (
        isinstance(dataset, IterableDataset)
        and callable(getattr(dataset, "state_dict", None))
        and callable(getattr(dataset, "load_state_dict", None))
        and not _has_shuffle_buffer(dataset)
    )


def _has_shuffle_buffer(dataset: Any) -> bool:
    """Whether a stream of ``datasets`` shuffles in a buffer, whose content its state does not hold."""
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None:
        if type(part).__name__.startswith("BufferShuffled"):
            return True
        part = getattr(part, "ex_iterable", None)
    return False


class StatedBatch(NamedTuple):
    """A batch, and where the stream that it was read from is after it."""

    batch: Any
    worker: int
    state: Any


class StatingCollator:
    """A collator whose batches come with the state of the stream they were read from."""

    def __init__(self, collate: Callable[[Any], Any], dataset: Any) -> None:
        self.collate = collate
        self._dataset = dataset

    def __call__(self, samples: Any) -> StatedBatch:
        """Return the batch of ``samples``, which were just read."""
        worker: Any = get_worker_info()
        dataset = self._dataset if worker is None else worker.dataset
        batch = self.collate(samples)
        return StatedBatch(batch, 0 if worker is None else worker.id, copy.deepcopy(dataset.state_dict()))


@dataclass(slots=True)
class StreamStates:
    """The states of a stream's copies, one for each worker, when the workers last had all had their turn.

    A resumed loader begins with the first worker, so it goes on from there, and leaves out the batches given since.
    """

    workers: int
    """Workers of the loader; 0 if the stream is read in the main process."""
    states: dict[int, Any] = field(default_factory=dict)
    """The number of a worker to its state; a worker without one is at the beginning."""
    since: int = 0
    """Batches given since then, fewer than there are workers."""
    _now: dict[int, Any] = field(default_factory=dict)
    _last: int = -1

    @classmethod
    def of(cls, workers: int, first: Mapping[int, Any]) -> Self:
        """Return the states before a pass of ``workers`` workers that begin at ``first``."""
        return cls(workers, dict(first), _now=dict(first))

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """Return the states that a checkpoint has kept.

        Raises:
            ValueError: If ``saved`` is no such dict.
        """
        if isinstance(saved, Mapping) and sorted(saved) == ["since", "states", "workers"]:
            workers, states, since = saved["workers"], saved["states"], saved["since"]
            if type(workers) is type(since) is int and isinstance(states, dict) and 0 <= since <= workers:
                return cls(workers, states, since)
        raise ValueError(f"not the states of a stream: {saved!r:.200}")

    def note(self, stated: StatedBatch) -> None:
        """Take over the state after a batch that is about to be used."""
        if stated.worker <= self._last:
            self.states, self.since = dict(self._now), 0
        self._now[stated.worker] = stated.state
        self._last, self.since = stated.worker, self.since + 1
        if stated.worker >= self.workers - 1:
            self.states, self.since = dict(self._now), 0

    def to_dict(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of the states; None if they hold what cannot be read back with care."""
        content = {"workers": self.workers, "states": self.states, "since": self.since}
        return content if _is_plain(content) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return value is None or type(value) in (bool, int, float, str, bytes, Tensor)


def resumed_stream(dataset: Any, state: Any) -> Any:
    """Return a copy of the stream ``dataset`` that begins at ``state``; ``dataset`` begins where it did."""
    stream = copy.copy(dataset)
    stream.load_state_dict(state)
    return stream


class ResumedWorker:
    """A ``worker_init_fn`` that sets each worker's copy of the stream to its state."""

    def __init__(self, states: Mapping[int, Any], then: Callable[[int], Any] | None) -> None:
        self._states = states
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Set the stream of this worker, then do what the loader's own function does."""
        worker: Any = get_worker_info()
        if worker_id in self._states:
            worker.dataset.load_state_dict(self._states[worker_id])
        if self._then is not None:
            self._then(worker_id)
