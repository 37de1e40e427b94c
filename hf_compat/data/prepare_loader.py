"""Preparing a plain ``DataLoader``: shuffled by seed and epoch, and sharded over the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from hf_compat.data.balancing import is_balanced
from hf_compat.data.dispatching import DispatchingDataLoader
from hf_compat.data.loader import PreparedDataLoader, loader_batching, loader_settings
from hf_compat.data.rank_batches import BatchShard, StreamShard, check_split_batches
from hf_compat.data.samplers import SeedableRandomSampler

__all__ = ["DataParallelLayout", "prepare_dataloader"]


@dataclass(frozen=True, slots=True)
class DataParallelLayout:
    """Distribution of a loader's batches over the data-parallel ranks."""

    size: int = 1
    """Data-parallel world size: ranks that see different batches."""
    rank: int = 0
    """Data-parallel rank of this process."""
    split_batches: bool = False
    """Split every batch over the ranks, rather than give each rank whole batches in turn."""
    even_batches: bool = True
    """Repeat samples so that every rank gets the same number of batches."""
    shards_batches: bool = True
    """Whether each rank gets its share; otherwise it reads its own loader, whose sampler may have chosen the share."""
    tells_epoch: bool = True
    """Whether a batch sampler that has ``set_epoch`` is told the epoch."""
    always_tells_dataset: bool = False
    """Whether a data set's ``set_epoch`` is called also where accelerate does not."""
    dispatch_batches: bool | None = None
    """Whether rank 0 reads the data for all ranks; None: for iterable data sets only."""


def prepare_dataloader(
    loader: DataLoader[Any],
    *,
    device: torch.device | None = None,
    data_seed: int | None = None,
    use_seedable_sampler: bool = True,
    non_blocking: bool = False,
    layout: DataParallelLayout | None = None,
) -> PreparedDataLoader:
    """Return a loader of this rank's batches, shuffled by seed and epoch, that prefetches one batch.

    Args:
        loader: A plain ``DataLoader``; a prepared one is returned as it is.
        device: The device that batches are moved to; None leaves them on the CPU.
        data_seed: Seed of the shuffling. Default: torch's initial seed, which ``set_seed`` sets.
        use_seedable_sampler: Replace a ``RandomSampler`` by one whose order depends only on seed and epoch.
        non_blocking: Copy to the device asynchronously.
        layout: How batches are distributed over the ranks. Default: a single rank.

    Raises:
        DataError: If ``split_batches`` and the batch size is not a multiple of the data-parallel size.

    References:
        Same batches and same draws as accelerate ``data_loader.py`` ``prepare_data_loader``.
    """
    if isinstance(loader, PreparedDataLoader):
        return loader
    layout = layout or DataParallelLayout()
    if layout.split_batches and layout.size > 1:
        check_split_batches(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None), layout.size)
    if use_seedable_sampler:
        _seed_sampler(loader, data_seed)
    is_stream = isinstance(loader.dataset, IterableDataset)
    dispatches = is_stream if layout.dispatch_batches is None else layout.dispatch_batches
    settings = loader_settings(loader) | {
        "always_tells_dataset": layout.always_tells_dataset,
        "device": device,
        "drops_partial_batch": loader.drop_last,
        "non_blocking": non_blocking,
        "remainder_from_batch": dispatches,
    }
    if layout.size > 1 and not layout.shards_batches:
        return PreparedDataLoader(loader.dataset, **loader_batching(loader), **settings, shares_are_own=True)
    if layout.size > 1 and dispatches:
        settings.pop("generator", None)
        settings |= {"split": layout.split_batches, "num_processes": layout.size, "process_index": layout.rank}
        return DispatchingDataLoader(loader.dataset, **loader_batching(loader), **settings)
    if layout.size == 1 or is_balanced(loader.batch_sampler):
        return PreparedDataLoader(loader.dataset, **loader_batching(loader), **settings)
    if is_stream:
        return _shard_stream(loader, layout, settings)
    return _shard_batches(loader, layout, settings, use_seedable_sampler=use_seedable_sampler)


def _seed_sampler(loader: DataLoader[Any], data_seed: int | None) -> None:
    """Replace a ``RandomSampler`` by one whose order depends only on seed and epoch."""
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


def _shard_stream(loader: DataLoader[Any], layout: DataParallelLayout, settings: dict[str, Any]) -> PreparedDataLoader:
    dataset: Any = loader.dataset
    batch_size: Any = loader.batch_size
    if not layout.split_batches and getattr(dataset, "n_shards", 0) >= layout.size:  # a stream of `datasets`
        dataset = dataset.shard(num_shards=layout.size, index=layout.rank)
    else:
        settings["synchronized_generator"] = getattr(dataset, "generator", None)
        dataset = StreamShard(
            dataset,
            batch_size=batch_size,
            drop_last=loader.drop_last,
            num_processes=layout.size,
            process_index=layout.rank,
            split_batches=layout.split_batches,
        )
    batch_size = batch_size // layout.size if layout.split_batches else batch_size
    return PreparedDataLoader(dataset, batch_size=batch_size, drop_last=loader.drop_last, **settings)


def _shard_batches(
    loader: DataLoader[Any], layout: DataParallelLayout, settings: dict[str, Any], *, use_seedable_sampler: bool
) -> PreparedDataLoader:
    is_batched = isinstance(loader.sampler, BatchSampler)
    batch_sampler: Any = loader.sampler if is_batched else loader.batch_sampler
    sampler: Any = getattr(batch_sampler, "sampler", None)
    if not use_seedable_sampler and hasattr(sampler, "generator"):
        if sampler.generator is None:
            sampler.generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        settings["synchronized_generator"] = sampler.generator
    shard = BatchShard(
        batch_sampler,
        num_processes=layout.size,
        process_index=layout.rank,
        split_batches=layout.split_batches,
        even_batches=layout.even_batches,
        tells_epoch=layout.tells_epoch,
    )
    if is_batched:
        return PreparedDataLoader(loader.dataset, sampler=shard, batch_size=loader.batch_size, **settings)
    return PreparedDataLoader(loader.dataset, batch_sampler=shard, **settings)
