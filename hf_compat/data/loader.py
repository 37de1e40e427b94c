"""The ``DataLoader`` the Trainer iterates: shuffled by seed and epoch, moved to the device, one batch ahead.

It does to a plain ``DataLoader`` what accelerate's ``prepare`` does in transformers' Trainer, draw for draw from the
random generators: a batch is yielded only after the next one was loaded, so that a collator that draws random numbers
and a model with dropout take turns in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from hf_compat.data.samplers import SeedableRandomSampler
from hf_compat.evaluation.accumulate import find_batch_size

__all__ = ["PreparedDataLoader", "loader_settings", "move_to_device", "prepare_dataloader"]

_KEPT_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
_OWN_SETTINGS = ("device", "drops_last", "non_blocking", "measures_last")


def move_to_device(data: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return ``data`` with every tensor in it, however nested, on ``device``; containers keep their types."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to_device(item, device, non_blocking=non_blocking) for item in data))
    if isinstance(data, list | tuple):
        return type(data)(move_to_device(item, device, non_blocking=non_blocking) for item in data)
    if isinstance(data, Mapping):
        if hasattr(data, "to"):  # a tokenizer's BatchEncoding moves itself and keeps its encodings
            return data.to(device)
        moved = {key: move_to_device(value, device, non_blocking=non_blocking) for key, value in data.items()}
        return type(data)(moved)  # type: ignore[call-arg]
    return data


class PreparedDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that knows its epoch, its last batch, and loads one batch ahead.

    Attributes:
        iteration: The epoch that the next ``iter`` goes through; counts up by itself, or is set by ``set_epoch``.
        end_of_dataloader: Whether the batch yielded last is the last of the pass.
        remainder: Samples in the last, partial batch; 0 if all are full, -1 if unknown or dropped.

    Args:
        *args: As for ``DataLoader``.
        device: Where batches are moved; None leaves them on the host.
        skip: Batches left out at the start, though loaded.
        drops_last: Whether a partial last batch is dropped.
        non_blocking: Do not wait for the copies to the device.
        measures_last: Take ``remainder`` from the last batch itself, as accelerate does where one process reads the
            data for all.
        **settings: As for ``DataLoader``.
    """

    def __init__(
        self,
        *args: Any,
        device: torch.device | None = None,
        skip: int = 0,
        drops_last: bool = False,
        non_blocking: bool = False,
        measures_last: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.device = device
        self.skip = skip
        self.drops_last = drops_last
        self.non_blocking = non_blocking
        self.measures_last = measures_last
        self.iteration = 0
        self.end_of_dataloader = False
        self.remainder = -1

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of epoch ``iteration``, loading one batch ahead."""
        self.set_epoch(self.iteration)
        self.end_of_dataloader = False
        self.remainder = self._count_remainder()
        batches = super().__iter__()
        missing = object()
        index = 0
        batch = next(batches, missing)
        while batch is not missing:
            if self.device is not None:
                batch = move_to_device(batch, self.device, non_blocking=self.non_blocking)
            following = next(batches, missing)
            self.end_of_dataloader = following is missing
            if self.end_of_dataloader and self.measures_last:
                self.remainder = find_batch_size(batch) or -1
            if index >= self.skip:
                yield batch
            index += 1
            batch = following
        self.iteration += 1

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter`` go through epoch ``epoch``: samplers and data sets that shuffle by epoch are told."""
        self.iteration = epoch
        sampler = getattr(self.batch_sampler, "sampler", None)
        for part in (self.batch_sampler, getattr(sampler, "batch_sampler", None), sampler, self.dataset):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a full batch, over all processes; None if the sampler does not tell."""
        sampler = self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler
        return self.batch_size or getattr(sampler, "batch_size", None)

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set, over all processes."""
        return len(self.dataset)  # type: ignore[arg-type]

    def _count_remainder(self) -> int:
        if self.drops_last:
            return -1
        batch_size = self.total_batch_size
        try:
            length = self.total_dataset_length
        except (TypeError, NotImplementedError, AttributeError):
            return -1
        return length % batch_size if batch_size else -1


def loader_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the settings of ``loader``, besides where its samples come from, that another one like it is made with."""
    kept = (*_KEPT_SETTINGS, *_OWN_SETTINGS) if isinstance(loader, PreparedDataLoader) else _KEPT_SETTINGS
    return {name: getattr(loader, name) for name in kept if hasattr(loader, name)}


def prepare_dataloader(
    loader: DataLoader[Any],
    *,
    device: torch.device | None = None,
    data_seed: int | None = None,
    seedable: bool = True,
    non_blocking: bool = False,
    dispatch: bool | None = None,
) -> PreparedDataLoader:
    """Return a loader of the same samples that is shuffled by seed and epoch and loads one batch ahead.

    Args:
        loader: A plain ``DataLoader``; a prepared one is returned as it is.
        device: Where batches are moved; None leaves them on the host.
        data_seed: Seed of the shuffling; None takes torch's initial seed, which ``set_seed`` sets.
        seedable: Replace a ``RandomSampler`` by one whose order follows from seed and epoch alone.
        non_blocking: Do not wait for the copies to the device.
        dispatch: Whether one process reads the data for all; None for iterable data sets alone.

    References:
        Same batches and same draws as accelerate ``data_loader.py`` ``prepare_data_loader`` with one process.
    """
    if isinstance(loader, PreparedDataLoader):
        return loader
    settings = loader_settings(loader)
    common: dict[str, Any] = {
        "device": device,
        "drops_last": loader.drop_last,
        "non_blocking": non_blocking,
        "measures_last": isinstance(loader.dataset, IterableDataset) if dispatch is None else dispatch,
    }
    if isinstance(loader.dataset, IterableDataset):
        return PreparedDataLoader(
            loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **settings, **common
        )
    if isinstance(loader.sampler, BatchSampler):  # the sampler itself gives lists of indices
        return PreparedDataLoader(
            loader.dataset, sampler=loader.sampler, batch_size=loader.batch_size, **settings, **common
        )
    batch_sampler = loader.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None)
    if seedable and batch_sampler is not None and isinstance(sampler, RandomSampler):
        batch_sampler.sampler = SeedableRandomSampler(  # type: ignore[attr-defined]
            sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=sampler.generator,
            data_seed=data_seed,
        )
    return PreparedDataLoader(loader.dataset, batch_sampler=batch_sampler, **settings, **common)
