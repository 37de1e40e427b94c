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

from hf_compat.distributed import collectives

__all__ = [
    "ResumedWorker",
    "StatedBatch",
    "StatingCollator",
    "StreamStates",
    "gather_stream_states",
    "resumed_stream",
    "states_itself",
]


def states_itself(dataset: Any) -> bool:
    """Return whether ``dataset`` is a stream that can say where it is, and go on from there without loss."""
    return (
        isinstance(dataset, IterableDataset)
        and callable(getattr(dataset, "state_dict", None))
        and callable(getattr(dataset, "load_state_dict", None))
        and not _has_shuffle_buffer(dataset)
        and (not hasattr(dataset, "whole") or states_itself(dataset.whole))  # one process's share of a stream
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
    """The states of one process's copies of a stream, one for each worker, when these last had all had their turn.

    A resumed loader begins with the first worker, so it goes on from there, and leaves out the batches given since.
    """

    workers: int
    """Workers of the loader; 0 if the stream is read in the main process."""
    states: dict[int, Any] = field(default_factory=dict)
    """The number of a worker to its state; a worker without one is at the beginning."""
    since: int = 0
    """Batches given since then, fewer than there are workers."""
    first: list[Tensor] | None = None
    """The first samples of the pass, which fill up the last round of processes; None where they are not needed."""
    _now: dict[int, Any] = field(default_factory=dict)
    _last: int = -1

    @classmethod
    def of(cls, workers: int, start: StreamStates | None) -> Self:
        """Return the states before a pass of ``workers`` workers that begin at ``start``, or else at the beginning."""
        if start is None:
            return cls(workers)
        return cls(workers, dict(start.states), first=start.first, _now=dict(start.states))

    @classmethod
    def of_process(cls, saved: Any, process: int, processes: int, *, alone: bool) -> Self | None:
        """Return the states that a checkpoint has kept for one process.

        Args:
            saved: What :func:`gather_stream_states` returned.
            process: Whose; its number.
            processes: How many there are now.
            alone: Whether this one reads for all.

        Returns:
            The states; None if they are those of another number of processes, or one did not say where it was.

        Raises:
            ValueError: If ``saved`` is something else.
        """
        kept = [cls._from_dict(each) for each in (saved if isinstance(saved, list) else [saved])]
        if len(kept) != processes or (None in kept and not alone):
            return None
        return kept[process]

    @classmethod
    def _from_dict(cls, saved: Any) -> Self | None:
        if saved is None:
            return None
        if isinstance(saved, Mapping) and {*saved} - {"first"} == {"since", "states", "workers"}:
            workers, states, since, first = saved["workers"], saved["states"], saved["since"], saved.get("first")
            whole = type(workers) is type(since) is int and isinstance(states, dict) and 0 <= since <= workers
            if whole and (first is None or (type(first) is list and all(isinstance(one, Tensor) for one in first))):
                return cls(workers, states, since, first)
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
        if self.first is not None:
            content["first"] = self.first
        return content if _is_plain(content) else None


def gather_stream_states(loader: Any) -> Any:
    """Return what a checkpoint keeps of where the stream of ``loader`` is, None if that is not known.

    Of several processes, each of which has to call it, that is a list with the states of each.
    """
    states = getattr(loader, "stream_states", None)
    mine = None if states is None else states.to_dict()
    if collectives.get_world_size() == 1 or not isinstance(getattr(loader, "dataset", None), IterableDataset):
        return mine
    every = collectives.gather_objects([mine])
    return every if any(every) else None


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
