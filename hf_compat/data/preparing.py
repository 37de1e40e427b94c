"""Making a script's plain ``DataLoader`` ready: shuffled by seed and epoch and shared out between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from hf_compat.data.dispatching import DispatchingDataLoader
from hf_compat.data.loader import PreparedDataLoader, loader_batching, loader_settings
from hf_compat.data.rank_batches import BatchShard, StreamShard, check_split
from hf_compat.data.samplers import SeedableRandomSampler

__all__ = ["Sharing", "prepare_dataloader"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the batches of a loader are shared out between the processes of a run."""

    processes: int = 1
    process: int = 0
    """Number of this process, from 0."""
    split: bool = False
    """Give each process its part of every batch, rather than whole batches in turn."""
    even: bool = True
    """Repeat samples so that every process gets as many batches."""
    dispatch: bool | None = None
    """Whether one process reads the data for all; None for streams alone."""


def prepare_dataloader(
    loader: DataLoader[Any],
    *,
    device: torch.device | None = None,
    data_seed: int | None = None,
    seedable: bool = True,
    non_blocking: bool = False,
    sharing: Sharing | None = None,
) -> PreparedDataLoader:
    """Return a loader of this process's share of the samples, shuffled by seed and epoch, one batch ahead.

    Args:
        loader: A plain ``DataLoader``; a prepared one is returned as it is.
        device: Where batches are moved; None leaves them on the host.
        data_seed: Seed of the shuffling; None takes torch's initial seed, which ``set_seed`` sets.
        seedable: Replace a ``RandomSampler`` by one whose order follows from seed and epoch alone.
        non_blocking: Do not wait for the copies to the device.
        sharing: How batches are shared out. Default: one process takes all.

    Raises:
        DataError: If batches are to be split that cannot be.

    References:
        Same batches and same draws as accelerate ``data_loader.py`` ``prepare_data_loader``.
    """
    if isinstance(loader, PreparedDataLoader):
        return loader
    sharing = sharing or Sharing()
    if sharing.split and sharing.processes > 1:
        check_split(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None), sharing.processes)
    if seedable:
        _seed_sampler(loader, data_seed)
    is_stream = isinstance(loader.dataset, IterableDataset)
    dispatches = is_stream if sharing.dispatch is None else sharing.dispatch
    settings = loader_settings(loader) | {
        "device": device,
        "drops_last": loader.drop_last,
        "non_blocking": non_blocking,
        "measures_last": dispatches,
    }
    if sharing.processes > 1 and dispatches:
        settings.pop("generator", None)
        settings |= {"split": sharing.split, "processes": sharing.processes, "process": sharing.process}
        return DispatchingDataLoader(loader.dataset, **loader_batching(loader), **settings)
    if sharing.processes == 1:
        return PreparedDataLoader(loader.dataset, **loader_batching(loader), **settings)
    if is_stream:
        return _shard_stream(loader, sharing, settings)
    return _shard_batches(loader, sharing, settings, seedable=seedable)


def _seed_sampler(loader: DataLoader[Any], data_seed: int | None) -> None:
    """Put a sampler in place of a ``RandomSampler`` whose order follows from seed and epoch alone."""
    batch_sampler = None if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if isinstance(loader.dataset, IterableDataset) or not isinstance(sampler, RandomSampler):
        return
    batch_sampler.sampler = SeedableRandomSampler(  # type: ignore[union-attr]
        sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,
        generator=sampler.generator,
        data_seed=data_seed,
    )


def _shard_stream(loader: DataLoader[Any], sharing: Sharing, settings: dict[str, Any]) -> PreparedDataLoader:
    dataset: Any = loader.dataset
    batch_size: Any = loader.batch_size
    if not sharing.split and getattr(dataset, "n_shards", 0) >= sharing.processes:  # a stream of `datasets`
        dataset = dataset.shard(num_shards=sharing.processes, index=sharing.process)
    else:
        settings["shared_generator"] = getattr(dataset, "generator", None)
        dataset = StreamShard(
            dataset,
            batch_size=batch_size,
            drop_last=loader.drop_last,
            processes=sharing.processes,
            process=sharing.process,
            split=sharing.split,
        )
    batch_size = batch_size // sharing.processes if sharing.split else batch_size
    return PreparedDataLoader(dataset, batch_size=batch_size, drop_last=loader.drop_last, **settings)


def _shard_batches(
    loader: DataLoader[Any], sharing: Sharing, settings: dict[str, Any], *, seedable: bool
) -> PreparedDataLoader:
    gives_batches = isinstance(loader.sampler, BatchSampler)
    batch_sampler: Any = loader.sampler if gives_batches else loader.batch_sampler
    sampler: Any = getattr(batch_sampler, "sampler", None)
    if not seedable and hasattr(sampler, "generator"):
        if sampler.generator is None:
            sampler.generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        settings["shared_generator"] = sampler.generator
    shard = BatchShard(
        batch_sampler,
        processes=sharing.processes,
        process=sharing.process,
        split=sharing.split,
        even=sharing.even,
    )
    if gives_batches:
        return PreparedDataLoader(loader.dataset, sampler=shard, batch_size=loader.batch_size, **settings)
    return PreparedDataLoader(loader.dataset, batch_sampler=shard, **settings)
