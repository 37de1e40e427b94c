"""Loaders that go on in the middle of an epoch: what comes before is neither loaded nor collated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hf_compat.data.dispatching import DispatchingDataLoader
from hf_compat.data.loader import PreparedDataLoader, loader_batching, loader_settings
from hf_compat.data.rank_batches import BatchShard, StreamShard
from hf_compat.data.samplers import SeedableRandomSampler
from hf_compat.data.stream_states import ResumedWorker, StreamStates, resumed_stream, states_itself

__all__ = ["resume_stream", "skip_batches", "skip_samples"]


def skip_batches(loader: Any, count: int) -> Any:
    """Return a loader that goes through an epoch from batch ``count`` on.

    With a sampler the batches before are neither loaded nor collated; an iterable data set has to read through them.

    Args:
        loader: A ``DataLoader`` or any iterable of batches.
        count: Batches to leave out at the start.
    """
    if not isinstance(loader, DataLoader):
        return _SkippedIterable(loader, count)
    kind: Any = type(loader) if isinstance(loader, PreparedDataLoader) else DataLoader
    # Where one process reads for all, its sampler gives a batch for each in turn.
    read = loader.processes if isinstance(loader, DispatchingDataLoader) and not loader.split else 1
    sampled = count * read
    settings = loader_settings(loader)
    if isinstance(loader.dataset, IterableDataset):
        if kind is DataLoader:
            return _SkippedIterable(loader, count)
        return kind(loader.dataset, skip=count, **loader_batching(loader), **settings)
    if isinstance(loader.sampler, BatchSampler):
        offset = _Offset(loader.sampler, sampled)
        return kind(loader.dataset, sampler=offset, batch_size=loader.batch_size, **settings)
    return kind(loader.dataset, batch_sampler=_Offset(loader.batch_sampler, sampled), **settings)


def resume_stream(loader: Any, saved: StreamStates) -> PreparedDataLoader | None:
    """Return a loader of the rest of an epoch of a stream that says itself where it was; None if it cannot be used.

    Args:
        loader: The prepared loader of an epoch.
        saved: Where the stream's copies were; its loader had as many workers.
    """
    if not isinstance(loader, PreparedDataLoader) or not states_itself(loader.dataset):
        return None
    if saved.workers != loader.num_workers:
        return None
    settings, dataset = loader_settings(loader), loader.dataset
    if loader.num_workers > 0:
        settings["worker_init_fn"] = ResumedWorker(saved.states, settings["worker_init_fn"])
    elif 0 in saved.states:
        dataset = resumed_stream(dataset, saved.states[0])
    left_out = "lead" if isinstance(loader, DispatchingDataLoader) else "skip"
    rest = type(loader)(dataset, **loader_batching(loader), **settings | {left_out: saved.since})
    rest.track_stream_states(saved)
    return rest


def skip_samples(loader: Any, count: int) -> Any | None:
    """Return a loader that goes through an epoch from sample ``count`` on, in batches counted from there.

    Args:
        loader: The prepared loader of an epoch.
        count: Samples to leave out at the start.

    Returns:
        The loader; None if the order of samples depends on how they are batched, or is not known.
    """
    if not isinstance(loader, PreparedDataLoader) or isinstance(loader.dataset, StreamShard):
        return None
    if isinstance(loader.dataset, IterableDataset):
        return _skip_of_stream(loader, count)
    shard = loader.batch_sampler if isinstance(loader.batch_sampler, BatchShard) else None
    batch_sampler: Any = loader.batch_sampler if shard is None else shard.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if type(batch_sampler) is not BatchSampler or not isinstance(sampler, SeedableRandomSampler | SequentialSampler):
        return None
    rest: Any = _Offset(sampler, count)
    batches: Any = BatchSampler(rest, batch_sampler.batch_size, batch_sampler.drop_last)
    if shard is not None:
        batches = BatchShard(
            batches,
            processes=shard.num_processes,
            process=shard.process_index,
            split=shard.split_batches,
            even=shard.even_batches,
        )
    return type(loader)(loader.dataset, batch_sampler=batches, **loader_settings(loader))


def _skip_of_stream(loader: PreparedDataLoader, count: int) -> PreparedDataLoader | None:
    if loader.num_workers > 0:  # each worker reads its own part: what came first in all is not first in each
        return None
    stream = _RestOfStream(loader.dataset, count)
    return type(loader)(stream, **loader_batching(loader), **loader_settings(loader))


class _RestOfStream(IterableDataset[Any]):
    """A stream from sample ``skip`` on; what comes before is read, not collated."""

    def __init__(self, stream: Any, skip: int) -> None:
        self._stream = stream
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._stream), self._skip, None)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)


class _Offset:
    """What ``sampler`` yields, batches or indices, from number ``skip`` on."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.batch_sampler = sampler
        self.sampler = getattr(sampler, "sampler", None)
        self.batch_size = getattr(sampler, "batch_size", None)
        self.skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.batch_sampler), self.skip, None)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skip, 0)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)


class _SkippedIterable:
    """Any iterable of batches from number ``skip`` on."""

    def __init__(self, batches: Any, skip: int) -> None:
        self._batches = batches
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._batches), self._skip, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
