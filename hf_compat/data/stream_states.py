"""The position of a stream as its ``state_dict`` gives it, so that a resumed run need not read what comes before.

A data set with ``state_dict`` and ``load_state_dict``, such as a stream of ``datasets``, returns its state after
each batch, in the worker that reads it. What a checkpoint keeps is the state after the batch in use, not after those
that were prefetched.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, TypeGuard, TypeVar

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from hf_compat.distributed import collectives


class StatefulStream(Protocol):
    """An iterable data set that can be resumed from its ``state_dict``."""

    def state_dict(self) -> Any:
        """Return the position of the stream."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Start the next pass at ``state_dict``."""


_StreamT = TypeVar("_StreamT", bound=StatefulStream)


def is_stateful_stream(dataset: object) -> TypeGuard[StatefulStream]:
    """Return whether ``dataset`` is a stream whose ``state_dict`` is all that is needed to resume it."""
    return (
        isinstance(dataset, IterableDataset)
        and _is_called_without_arguments(getattr(dataset, "state_dict", None))
        and callable(getattr(dataset, "load_state_dict", None))
        and not _has_shuffle_buffer(dataset)
        and (not hasattr(dataset, "unsharded") or is_stateful_stream(dataset.unsharded))  # a StreamShard
    )


def _is_called_without_arguments(method: object) -> bool:
    """Return whether ``method`` is one: streams of litdata and mosaicml-streaming take counts of their loaders."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True


def _has_shuffle_buffer(dataset: object) -> bool:
    """Return whether a stream of ``datasets``, or one it is mixed from, has a buffer that is not in its state."""
    sources: list[Any] = [getattr(dataset, "_ex_iterable", None)]
    for source in sources:  # which grows by what each one reads
        if type(source).__name__.startswith("BufferShuffled"):
            return True
        if hasattr(source, "ex_iterable"):
            sources.append(source.ex_iterable)
        sources += getattr(source, "ex_iterables", [])
    return False


class BatchWithState(NamedTuple):
    """A batch, and the state of its stream after it."""

    batch: Any
    worker_id: int
    state: Any


class StateCollator:
    """A collator that returns each batch with the state of the stream that it was read from."""

    def __init__(self, collate_fn: Callable[[Any], Any], dataset: StatefulStream) -> None:
        self.collate_fn = collate_fn
        self._dataset = dataset

    def __call__(self, samples: object) -> BatchWithState:
        """Return the batch of ``samples``, which were just read."""
        worker: Any = get_worker_info()
        dataset = self._dataset if worker is None else worker.dataset
        batch = self.collate_fn(samples)
        return BatchWithState(batch, 0 if worker is None else worker.id, copy.deepcopy(dataset.state_dict()))


@dataclass(slots=True)
class StreamStates:
    """The states of one rank's copies of a stream, one per worker, after the last full round of all workers.

    A resumed loader starts with the first worker, so it resumes after that round and skips the batches given since.
    """

    workers: int
    """Workers of the loader; 0 if the stream is read in the main process."""
    states: dict[int, Any] = field(default_factory=dict)
    """State by worker id; a worker that is not in it is at the beginning."""
    since: int = 0
    """Batches given since that round, fewer than there are workers."""
    first: list[Tensor] | None = None
    """The first samples of the pass, which pad the last round of ranks; None where they are not needed."""
    _current: dict[int, Any] = field(default_factory=dict)
    _last_worker: int = -1

    @classmethod
    def of(cls, workers: int, start: StreamStates | None) -> Self:
        """Return the states before a pass of ``workers`` workers that starts at ``start``, None for the beginning."""
        if start is None:
            return cls(workers)
        return cls(workers, dict(start.states), first=start.first, _current=dict(start.states))

    @classmethod
    def of_process(cls, saved: object, process: int, processes: int, *, alone: bool) -> Self | None:
        """Return the states that a checkpoint keeps for one rank.

        Args:
            saved: What :func:`gather_stream_states` returned.
            process: The rank.
            processes: The world size of this run.
            alone: Whether this rank reads for all of them.

        Returns:
            The states; None if they are of another world size, or if the stream of a rank had none.

        Raises:
            ValueError: If ``saved`` is something else.
        """
        kept = [cls._from_dict(each) for each in (saved if isinstance(saved, list) else [saved])]
        if len(kept) != processes or (None in kept and not alone):
            return None
        return kept[process]

    @classmethod
    def _from_dict(cls, saved: object) -> Self | None:
        if saved is None:
            return None
        if isinstance(saved, Mapping) and {*saved} - {"first"} == {"since", "states", "workers"}:
            workers, states, since, first = saved["workers"], saved["states"], saved["since"], saved.get("first")
            valid = type(workers) is type(since) is int and isinstance(states, dict) and 0 <= since <= workers
            if valid and (first is None or (type(first) is list and all(isinstance(one, Tensor) for one in first))):
                return cls(workers, states, since, first)
        raise ValueError(f"not the states of a stream: {saved!r:.200}")

    def update(self, batch: BatchWithState) -> None:
        """Record the state after ``batch``, which is about to be used."""
        if batch.worker_id <= self._last_worker:
            self.states, self.since = dict(self._current), 0
        self._current[batch.worker_id] = batch.state
        self._last_worker, self.since = batch.worker_id, self.since + 1
        if batch.worker_id >= self.workers - 1:
            self.states, self.since = dict(self._current), 0

    def to_dict(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps; None if a state holds objects that ``weights_only`` loading refuses."""
        content = {"workers": self.workers, "states": self.states, "since": self.since}
        if self.first is not None:
            content["first"] = self.first
        return content if _is_plain(content) else None


def gather_stream_states(loader: object) -> Any:
    """Return what a checkpoint keeps of the position of ``loader``'s stream, None if it has no state.

    With several ranks, all of which have to call it, that is a list with the states of each.
    """
    states = getattr(loader, "stream_states", None)
    own = None if states is None else states.to_dict()
    if collectives.get_world_size() == 1 or not isinstance(getattr(loader, "dataset", None), IterableDataset):
        return own
    gathered = collectives.gather_objects([own])
    return gathered if any(gathered) else None


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return value is None or type(value) in (bool, int, float, str, bytes, Tensor)


def stream_from_state(dataset: _StreamT, state: object) -> _StreamT:
    """Return a copy of the stream ``dataset`` that starts at ``state``; ``dataset`` is not changed."""
    stream = copy.copy(dataset)
    stream.load_state_dict(state)
    return stream


class RestoreWorkerState:
    """A ``worker_init_fn`` that loads the state of each worker's copy of the stream."""

    def __init__(self, states: Mapping[int, Any], worker_init_fn: Callable[[int], Any] | None) -> None:
        self._states = states
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        """Load the state of this worker's stream, then call the loader's own ``worker_init_fn``."""
        worker: Any = get_worker_info()
        if worker_id in self._states:
            worker.dataset.load_state_dict(self._states[worker_id])
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker_id)
