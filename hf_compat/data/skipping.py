"""Loaders that resume in the middle of an epoch: earlier batches are neither loaded nor collated."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hf_compat.data.loader import DispatchingDataLoader, PreparedDataLoader, loader_batching, loader_settings
from hf_compat.data.rank_batches import BatchShard, StreamShard
from hf_compat.data.samplers import SeedableRandomSampler
from hf_compat.data.sequence_shards import SequenceShards
from hf_compat.data.stream_states import RestoreWorkerState, StreamStates, is_stateful_stream, stream_from_state


def skip_batches(loader: Iterable[Any], count: int) -> Iterable[Any]:
    """Return a loader that iterates over an epoch from batch ``count`` on.

    With a sampler, skipped batches are neither loaded nor collated; an iterable data set has to read through them.

    Args:
        loader: A ``DataLoader`` or any iterable of batches.
        count: Batches to skip.
    """
    if isinstance(loader, SequenceShards):
        loader.start_at(count, skip_batches)
        return loader
    if not isinstance(loader, DataLoader):
        return _SkipIterable(loader, count)
    kind: Any = type(loader) if isinstance(loader, PreparedDataLoader) else DataLoader
    # Where rank 0 reads for all, its sampler gives one batch per rank in turn.
    reads_per_batch = loader.num_processes if isinstance(loader, DispatchingDataLoader) and not loader.split else 1
    sampled = count * reads_per_batch
    settings = loader_settings(loader)
    skipped: Iterable[Any]
    if isinstance(loader.dataset, IterableDataset):
        if kind is DataLoader:
            return _SkipIterable(loader, count)
        skipped = kind(loader.dataset, skip=count, **loader_batching(loader), **settings)
    elif isinstance(loader.sampler, BatchSampler):
        sampler = _SkipSampler(loader.sampler, sampled)
        skipped = kind(loader.dataset, sampler=sampler, batch_size=loader.batch_size, **settings)
    else:
        skipped = kind(loader.dataset, batch_sampler=_SkipSampler(loader.batch_sampler, sampled), **settings)
    return skipped


def resume_stream(loader: object, saved: StreamStates) -> PreparedDataLoader | None:
    """Return a loader of the rest of an epoch of a stateful stream; None if the states cannot be used.

    Args:
        loader: The prepared loader of a full epoch.
        saved: The states of the stream; they can be used if its loader had as many workers.
    """
    if not isinstance(loader, PreparedDataLoader) or not is_stateful_stream(loader.dataset):
        return None
    if saved.workers != loader.num_workers:
        return None
    settings, dataset = loader_settings(loader), loader.dataset
    if loader.num_workers > 0:
        settings["worker_init_fn"] = RestoreWorkerState(saved.states, settings["worker_init_fn"])
    elif 0 in saved.states:
        dataset = stream_from_state(dataset, saved.states[0])
    skip = "skip_reads" if isinstance(loader, DispatchingDataLoader) else "skip"
    rest = type(loader)(dataset, **loader_batching(loader), **settings | {skip: saved.since})
    rest.track_stream_states(saved)
    return rest


def skip_samples(loader: object, count: int) -> PreparedDataLoader | None:
    """Return a loader that iterates over an epoch from sample ``count`` on, in batches counted from there.

    Args:
        loader: The prepared loader of a full epoch.
        count: Samples to skip.

    Returns:
        The loader; None if the order of samples depends on how they are batched, or is not known.
    """
    if not isinstance(loader, PreparedDataLoader) or isinstance(loader.dataset, StreamShard) or loader.shares_are_own:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return _skip_samples_of_stream(loader, loader.dataset, count)
    shard = loader.batch_sampler if isinstance(loader.batch_sampler, BatchShard) else None
    batch_sampler: Any = loader.batch_sampler if shard is None else shard.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if type(batch_sampler) is not BatchSampler or not isinstance(sampler, SeedableRandomSampler | SequentialSampler):
        return None
    rest: Any = _SkipSampler(sampler, count)
    batches: Any = BatchSampler(rest, batch_sampler.batch_size, batch_sampler.drop_last)
    if shard is not None:
        batches = BatchShard(
            batches,
            num_processes=shard.num_processes,
            process_index=shard.process_index,
            split_batches=shard.split_batches,
            even_batches=shard.even_batches,
            tells_epoch=shard.tells_epoch,
        )
    return type(loader)(loader.dataset, batch_sampler=batches, **loader_settings(loader))


def _skip_samples_of_stream(
    loader: PreparedDataLoader, stream: IterableDataset[Any], count: int
) -> PreparedDataLoader | None:
    if loader.num_workers > 0:  # each worker reads its own shard, so the first samples of all are not the first of each
        return None
    return type(loader)(_SkipStream(stream, count), **loader_batching(loader), **loader_settings(loader))


class _SkipStream(IterableDataset[Any]):
    """A stream from sample ``skip`` on; skipped samples are read, but not collated."""

    def __init__(self, stream: IterableDataset[Any], skip: int) -> None:
        self._stream = stream
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._stream), self._skip, None)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)


class _SkipSampler:
    """The items of ``sampler``, batches or indices, from number ``skip`` on."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.batch_sampler = sampler
        self.batch_size = getattr(sampler, "batch_size", None)
        self.skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.batch_sampler), self.skip, None)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skip, 0)

    def set_epoch(self, epoch: int) -> None:
        for part in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


class _SkipIterable:
    """Any iterable of batches from number ``skip`` on."""

    def __init__(self, batches: Iterable[Any], skip: int) -> None:
        self._batches = batches
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._batches), self._skip, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
