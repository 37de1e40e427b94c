"""What one of several processes is given of the batches, or of the stream, that all of them share."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from hf_compat.data.stream_states import resumed_stream
from hf_compat.errors import DataError

__all__ = ["BatchShard", "StreamShard", "check_even", "check_split"]


def check_split(batch_size: int | None, processes: int) -> None:
    """Refuse to split batches that cannot be split evenly.

    Raises:
        DataError: If ``batch_size`` is unknown or no multiple of ``processes``.
    """
    if batch_size is None or batch_size % processes != 0:
        raise DataError(
            f"`accelerator_config`: split_batches=True splits each batch over {processes} processes, but the batch "
            f"size is {batch_size}: make it a multiple of {processes}."
        )


class BatchShard(BatchSampler):
    """The batches of one process: of each ``processes`` batches in a row, the one at its place.

    Args:
        batch_sampler: Lists of indices, the same on every process.
        processes: How many share them.
        process: Number of this one.
        split: Give each process its part of every batch, rather than whole batches in turn.
        even: Fill the last batches up from the first ones, so that every process gets as many, all of one size.

    Raises:
        DataError: If ``split`` and the batch size is no multiple of ``processes``.

    References:
        Same batches as accelerate ``data_loader.py`` ``BatchSamplerShard``.
    """

    def __init__(
        self, batch_sampler: Any, *, processes: int, process: int, split: bool = False, even: bool = True
    ) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = processes
        self.process_index = process
        self.split_batches = split
        self.even_batches = even
        self.batch_size: Any = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        if split:
            check_split(self.batch_size, processes)

    @property
    def total_length(self) -> int:
        """Batches over all processes, before any are filled up."""
        return len(self.batch_sampler)

    @property
    def is_even(self) -> bool:
        """Whether every process gets as many batches."""
        return self.split_batches or self.even_batches or self.drop_last or self.total_length % self.num_processes == 0

    def __len__(self) -> int:
        if self.split_batches:
            return self.total_length
        whole, rest = divmod(self.total_length, self.num_processes)
        if rest == 0 or self.drop_last:
            return whole
        return whole + int(self.even_batches or self.process_index < rest)

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers inside which epoch comes next."""
        for part in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def __iter__(self) -> Iterator[list[Any]]:
        return self._parts() if self.split_batches else self._turns()

    def _turns(self) -> Iterator[list[Any]]:
        """Yield this process's batch of each full round; then what the last, incomplete round leaves."""
        size, processes = self.batch_size, self.num_processes
        first_round: list[list[Any]] = []
        current: list[list[Any]] = []
        for batch in self.batch_sampler:
            current.append(batch)
            if len(first_round) < processes:
                first_round.append(batch)
            if len(current) == processes and (size is None or len(batch) == size):
                yield current[self.process_index]
                current = []
        if not current or self.drop_last:
            return
        if not self.even_batches:
            if self.process_index < len(current):
                yield current[self.process_index]
        elif size is None:
            yield list(itertools.islice(itertools.chain(current, itertools.cycle(first_round)), processes))[
                self.process_index
            ]
        else:
            again = itertools.cycle(itertools.chain.from_iterable(first_round))
            indices = itertools.chain(itertools.chain.from_iterable(current), again)
            start = self.process_index * size
            yield list(itertools.islice(indices, start, start + size))

    def _parts(self) -> Iterator[list[Any]]:
        """Yield this process's part of each batch; a last, partial one is filled up from the first."""
        part = self.batch_size // self.num_processes
        mine = slice(part * self.process_index, part * (self.process_index + 1))
        first: list[Any] = []
        for batch in self.batch_sampler:
            first = first or batch
            if len(batch) == self.batch_size:
                yield batch[mine]
            elif self.drop_last:
                return
            elif self.even_batches:
                filled = itertools.chain(batch, itertools.cycle(first))
                yield list(itertools.islice(filled, self.batch_size))[mine]
            elif len(batch) > mine.start:
                yield batch[mine]


class StreamShard(IterableDataset[Any]):
    """The samples of one process out of a stream that every process reads: batch by batch in turn.

    Args:
        dataset: The whole stream, the same on every process.
        batch_size: Samples in a batch of one process; with ``split`` of all processes together.
        drop_last: Drop a last round that is not full; else it is filled up from the first.
        processes: How many share the stream.
        process: Number of this one.
        split: See ``batch_size``.

    References:
        Same samples as accelerate ``data_loader.py`` ``IterableDatasetShard``.
    """

    def __init__(
        self, dataset: Any, *, batch_size: int, drop_last: bool, processes: int, process: int, split: bool = False
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = processes
        self.process_index = process
        self.split_batches = split
        self.epoch = 0
        self._begin: Any = None
        self._read = dataset
        self._end: Any = None

    @property
    def whole(self) -> Any:
        """The stream that every process reads."""
        return self.dataset

    def state_dict(self) -> Any:
        """Return where the stream is; between batches that is between rounds."""
        return self._read.state_dict() if self._end is None else self._end

    def load_state_dict(self, state: Any) -> None:
        """Begin the next pass at ``state``."""
        self._begin = state

    def set_epoch(self, epoch: int) -> None:
        """Tell the stream which epoch comes next."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        rounds = len(self.dataset) / (self.batch_size * self.num_processes)
        return (math.floor(rounds) if self.drop_last else math.ceil(rounds)) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        part = self.batch_size // self.num_processes if self.split_batches else self.batch_size
        size = part * self.num_processes
        mine = slice(part * self.process_index, part * (self.process_index + 1))
        first: list[Any] = []
        samples = self._samples(self._begin)
        while current := list(itertools.islice(samples, size)):
            if self._begin is None:
                first = first or current
            if len(current) < size and self.drop_last:
                return
            if len(current) < size and not first:  # the pass began before this one did
                self._end = copy.deepcopy(self.state_dict())
                first = list(itertools.islice(self._samples(None), size))
            yield from list(itertools.islice(itertools.chain(current, itertools.cycle(first)), size))[mine]

    def _samples(self, state: Any) -> Iterator[Any]:
        """Return the samples of the whole stream, from ``state`` on or from the beginning."""
        generator = getattr(self.dataset, "generator", None)
        if not hasattr(self.dataset, "set_epoch") and isinstance(generator, torch.Generator):
            generator.manual_seed(self.epoch)
        self._read = self.dataset if state is None else resumed_stream(self.dataset, state)
        return iter(self._read)


def check_even(loader: object) -> None:
    """Refuse to train with a loader that gives some ranks a batch less than others.

    Args:
        loader: A train loader; where it shares no batches out there is nothing to check.

    Raises:
        DataError: If it does.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchShard) and not sampler.is_even:
        raise DataError(
            f"`accelerator_config`: even_batches=False leaves some of {sampler.num_processes} processes with one "
            f"of {sampler.total_length} batches less, for whose gradients the others would wait forever. Set "
            "`dataloader_drop_last=True`, or leave batches even for training."
        )
