"""The batches, or the samples of a stream, that one data-parallel rank gets."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from hf_compat.data.stream_states import stream_from_state
from hf_compat.errors import DataError
from hf_compat.metrics import has_length


def check_split_batches(batch_size: int | None, num_processes: int) -> None:
    """Check that batches can be split evenly over the ranks.

    Raises:
        DataError: If ``batch_size`` is unknown or not a multiple of ``num_processes``.
    """
    if batch_size is None or batch_size % num_processes != 0:
        raise DataError(
            f"`accelerator_config`: split_batches=True splits each batch over {num_processes} ranks, but the batch "
            f"size is {batch_size}: make it a multiple of {num_processes}."
        )


class BatchShard(BatchSampler):
    """The batches of one data-parallel rank: of each ``num_processes`` consecutive batches, the one at its index.

    Args:
        batch_sampler: Lists of indices, the same on every rank.
        num_processes: Data-parallel world size.
        process_index: Data-parallel rank.
        split_batches: Split every batch over the ranks, rather than give each rank whole batches in turn.
        even_batches: Pad the last batches with samples of the first, so that all ranks get equally many of equal size.
        tells_epoch: Pass the epoch to ``batch_sampler`` if that has ``set_epoch``; its ``sampler`` always gets it.

    Raises:
        DataError: If ``split_batches`` and the batch size is not a multiple of ``num_processes``.

    References:
        Same batches as accelerate ``data_loader.py`` ``BatchSamplerShard``.
    """

    def __init__(
        self,
        batch_sampler: Any,
        *,
        num_processes: int,
        process_index: int,
        split_batches: bool = False,
        even_batches: bool = True,
        tells_epoch: bool = True,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.tells_epoch = tells_epoch
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        if split_batches:
            check_split_batches(self.batch_size, num_processes)

    @property
    def total_length(self) -> int:
        """Batches of all ranks together, before padding."""
        return len(self.batch_sampler)

    @property
    def is_even(self) -> bool:
        """Whether every rank gets the same number of batches, as far as the number of samples is known."""
        if self.even_batches or self.drop_last:
            return True
        if not self.split_batches:
            return self.total_length % self.num_processes == 0
        last = self._last_samples
        return last == 0 or last > self.batch_size // self.num_processes * (self.num_processes - 1)

    @property
    def is_gatherable(self) -> bool:
        """Whether all ranks get equally many batches of equally many samples, as far as that is known."""
        is_full = self.even_batches or self.drop_last or self._last_samples == 0
        return self.is_even and (is_full or self.num_processes == 1)

    @property
    def _last_samples(self) -> int:
        """Samples in the last batch, 0 if it is full, or if that is not known."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        return len(sampler) % self.batch_size if self.batch_size and has_length(sampler) else 0

    def __len__(self) -> int:
        if self.split_batches:
            return self.total_length
        rounds, rest = divmod(self.total_length, self.num_processes)
        if rest == 0 or self.drop_last:
            return rounds
        return rounds + int(self.even_batches or self.process_index < rest)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the samplers inside."""
        for part in (self.batch_sampler if self.tells_epoch else None, getattr(self.batch_sampler, "sampler", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def __iter__(self) -> Iterator[list[Any]]:
        return self._iter_split() if self.split_batches else self._iter_whole()

    def _iter_whole(self) -> Iterator[list[Any]]:
        """Yield this rank's batch of each full round, then its batch of the last, incomplete round."""
        size, num_processes = self.batch_size, self.num_processes
        first_round: list[list[Any]] = []
        current: list[list[Any]] = []
        for batch in self.batch_sampler:
            current.append(batch)
            if len(first_round) < num_processes:
                first_round.append(batch)
            if len(current) == num_processes and (size is None or len(batch) == size):
                yield current[self.process_index]
                current = []
        if not current or self.drop_last:
            return
        if not self.even_batches:
            if self.process_index < len(current):
                yield current[self.process_index]
        elif size is None:
            yield list(itertools.islice(itertools.chain(current, itertools.cycle(first_round)), num_processes))[
                self.process_index
            ]
        else:
            padding = itertools.cycle(itertools.chain.from_iterable(first_round))
            indices = itertools.chain(itertools.chain.from_iterable(current), padding)
            start = self.process_index * size
            yield list(itertools.islice(indices, start, start + size))

    def _iter_split(self) -> Iterator[list[Any]]:
        """Yield this rank's part of each batch; a partial last batch is padded with samples of the first."""
        size = self.batch_size // self.num_processes
        own = slice(size * self.process_index, size * (self.process_index + 1))
        first: list[Any] = []
        for batch in self.batch_sampler:
            first = first or batch
            if len(batch) == self.batch_size:
                yield batch[own]
            elif self.drop_last:
                return
            elif self.even_batches:
                padded = itertools.chain(batch, itertools.cycle(first))
                yield list(itertools.islice(padded, self.batch_size))[own]
            elif len(batch) > own.start:
                yield batch[own]


class StreamShard(IterableDataset[Any]):
    """The samples of one data-parallel rank out of a stream that every rank reads: batch by batch in turn.

    Args:
        dataset: The stream, the same on every rank.
        batch_size: Samples in a batch of one rank; with ``split_batches`` of all ranks together.
        drop_last: Drop an incomplete last round; otherwise it is padded with samples of the first.
        num_processes: Data-parallel world size.
        process_index: Data-parallel rank.
        split_batches: See ``batch_size``.

    References:
        Same samples as accelerate ``data_loader.py`` ``IterableDatasetShard``.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int,
        drop_last: bool,
        num_processes: int,
        process_index: int,
        split_batches: bool = False,
    ) -> None:
        self.dataset: Any = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.epoch = 0
        self._start_state: Mapping[str, Any] | None = None
        self._current: Any = dataset
        self._end_state: Mapping[str, Any] | None = None

    @property
    def unsharded(self) -> IterableDataset[Any]:
        """The stream that every rank reads."""
        return self.dataset  # type: ignore[no-any-return]

    def state_dict(self) -> Mapping[str, Any]:
        """Return the position of the stream; between batches that is between rounds."""
        return self._current.state_dict() if self._end_state is None else self._end_state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start the next pass at ``state_dict``."""
        self._start_state = state_dict

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the stream."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        rounds = len(self.dataset) / (self.batch_size * self.num_processes)
        return (math.floor(rounds) if self.drop_last else math.ceil(rounds)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        own_size = self.batch_size // self.num_processes if self.split_batches else self.batch_size
        size = own_size * self.num_processes
        own = slice(own_size * self.process_index, own_size * (self.process_index + 1))
        first: list[Any] = []
        samples = self._samples(self._start_state)
        while current := list(itertools.islice(samples, size)):
            if self._start_state is None:
                first = first or current
            if len(current) < size and self.drop_last:
                return
            if len(current) < size and not first:  # the first samples were read before the run was resumed
                self._end_state = copy.deepcopy(self.state_dict())
                first = list(itertools.islice(self._samples(None), size))
            yield from list(itertools.islice(itertools.chain(current, itertools.cycle(first)), size))[own]

    def _samples(self, state: Mapping[str, Any] | None) -> Iterator[Any]:
        """Return the samples of all ranks, from ``state`` on or from the beginning."""
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)
        self._current = self.dataset if state is None else stream_from_state(self.dataset, state)
        return iter(self._current)


def check_gatherable(loader: object) -> None:
    """Refuse a loader whose batches have more samples on some ranks than on others, which cannot be gathered.

    Args:
        loader: A loader of prepared batches; where it shares none out there is nothing to check.

    Raises:
        DataError: If so.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchShard) and not sampler.is_gatherable:
        raise DataError(
            "`accelerator_config`: with even_batches=False, the last batch of an evaluation has more samples on some "
            f"of the {sampler.num_processes} processes than on others, and their outputs cannot be gathered. Keep "
            "`even_batches=True`, with which samples that are added do not count, or set `eval_use_gather_object=True`."
        )


def check_even(loader: object, *, awaited: str) -> None:
    """Refuse a loader that gives some ranks a batch less than others.

    Args:
        loader: A loader of prepared batches; where it shares none out there is nothing to check.
        awaited: What the others would wait for.

    Raises:
        DataError: If it does.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchShard) and not sampler.is_even:
        split = "split over them " if sampler.split_batches else ""
        raise DataError(
            f"`accelerator_config`: with even_batches=False, {sampler.total_length} batches {split}leave some of the "
            f"{sampler.num_processes} processes with one batch fewer, and the others would wait forever for their "
            f"{awaited}. Set `dataloader_drop_last=True`, or keep `even_batches=True`."
        )
