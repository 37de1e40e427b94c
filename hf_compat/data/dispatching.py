"""A loader whose data rank 0 reads for all ranks: ``dispatch_batches=True``, the default for iterable data sets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hf_compat.data.loader import PreparedDataLoader
from hf_compat.data.stream_states import BatchWithState, StreamStates
from hf_compat.data.transfer import move_batch
from hf_compat.distributed import collectives
from hf_compat.errors import DataError, LoaderError, described
from hf_compat.nested import MAPPINGS, Nested, find_batch_size, map_nested, rebuild

__all__ = ["DispatchingDataLoader"]


class DispatchingDataLoader(PreparedDataLoader):
    """A ``DataLoader`` that only rank 0 iterates over; every rank yields its part of what rank 0 reads.

    Rank 0 prefetches one round: a batch for each rank or, with ``split``, one batch to be split. A last round that
    cannot be split evenly is padded with samples of the first.

    Args:
        *args: As for ``DataLoader``.
        split: Split each batch over the ranks, rather than read one for each.
        skip_reads: Batches that rank 0 skips before it reads the first round.
        num_processes: Data-parallel world size.
        process_index: Data-parallel rank.
        **settings: As for ``PreparedDataLoader``.

    References:
        Same batches as accelerate ``data_loader.py`` ``DataLoaderDispatcher``.
    """

    own_settings = (*PreparedDataLoader.own_settings, "split", "num_processes", "process_index")

    def __init__(
        self,
        *args: Any,
        split: bool = False,
        skip_reads: int = 0,
        num_processes: int,
        process_index: int,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.split = split
        self.skip_reads = skip_reads
        self.num_processes = num_processes
        self.process_index = process_index
        self._round: list[BatchWithState] = []

    def track_stream_states(self, start: StreamStates | None = None) -> None:
        """Keep ``stream_states`` up to date from the next pass on, on rank 0 alone."""
        super().track_stream_states(start)
        if collectives.get_rank() != 0:
            self.stream_states = None

    def __len__(self) -> int:
        batches = super().__len__()
        if self.split:
            return batches
        rounds = batches / self.num_processes
        return math.floor(rounds) if self.drops_partial_batch else math.ceil(rounds)

    @property
    def tells_dataset(self) -> bool:
        """Whether ``set_epoch`` calls the data set's: as in accelerate, not if a sampler has one."""
        return self.always_tells_dataset or not hasattr(getattr(self.batch_sampler, "sampler", None), "set_epoch")

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a full round."""
        size = super().total_batch_size
        return size if size is None or self.split else size * self.num_processes

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield this rank's batches of epoch ``iteration``."""
        self.begin_pass()
        # On every rank, so that all draw the same from the global generator.
        batches = self.plain_iterator()
        self._skip_reads(batches)
        first: Any = None
        index = 0
        current = self._broadcast(self._read(batches))
        while current is not None:
            if first is None:
                first = self._first_samples(current)
            used = self._round
            following = self._broadcast(self._read(batches))
            if following is None:
                self.end_of_dataloader = True
                self.remainder = find_batch_size(current) or -1
            own = self._own_samples(current, first)
            self._update_states(used)
            if index >= self.skip:
                yield own
            index += 1
            current = following
        self.end_pass()

    def _read(self, batches: Iterator[Any]) -> Any:
        """Return what rank 0 reads for one round, None at the end and on the other ranks."""
        if collectives.get_rank() != 0:
            return None
        count = 1 if self.split else self.num_processes
        read = [batch for _, batch in zip(range(count), batches, strict=False)]
        if not read or (len(read) < count and self.drops_partial_batch):
            return None
        self._round = [batch for batch in read if isinstance(batch, BatchWithState)]
        return _concatenate([batch.batch if isinstance(batch, BatchWithState) else batch for batch in read])

    def _skip_reads(self, batches: Iterator[Any]) -> None:
        """Reset the states and skip the batches of the first round of workers that were used before the resume."""
        if self.stream_states is not None:
            self.stream_states = StreamStates.of(self.num_workers, self._start)
            self._update_states([batch for _, batch in zip(range(self.skip_reads), batches, strict=False)])

    def _update_states(self, used: list[BatchWithState]) -> None:
        if self.stream_states is not None:
            for batch in used:
                self.stream_states.update(batch)

    def _first_samples(self, current: Nested) -> Any:
        """Return the samples that pad the last round: the first of the pass; a resumed run has them in its states."""
        saved = None if self._start is None else self._start.first
        leaves = iter(saved or ())
        first = collectives.map_tensors(
            lambda tensor: tensor[: self.num_processes] if saved is None else next(leaves).to(tensor.device), current
        )
        if self.stream_states is not None:
            self.stream_states.first = kept = []
            collectives.map_tensors(lambda tensor: kept.append(tensor.cpu().clone()), first)
        return first

    def _broadcast(self, batch: Nested | None) -> Any:
        """Return rank 0's ``batch`` on every rank, on its device; None at the end."""
        is_main = collectives.get_rank() == 0
        layout = None if batch is None else collectives.map_tensors(_Layout, batch)
        layout = collectives.broadcast_object(layout)
        if layout is None:
            return None
        target = self.device or collectives.communication_device()
        batch = move_batch(batch, target, non_blocking=self.non_blocking) if is_main else _empty(layout, target)
        return collectives.broadcast(batch)

    def _own_samples(self, batch: Nested, first: Nested) -> Any:
        """Return this rank's samples of ``batch``."""
        count = self.num_processes
        size, odd = divmod(find_batch_size(batch) or 0, count)
        if odd and self.end_of_dataloader and not self.drops_partial_batch:
            batch = _concatenate([batch, first])
            size += 1
        start = self.process_index * size
        return collectives.map_tensors(lambda tensor: tensor[start : start + size], batch)


class _Layout:
    """Shape and dtype of a tensor, to allocate it before it is received."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype


def _empty(layout: object, device: torch.device) -> Any:
    return map_nested(lambda one: torch.empty(one.shape, dtype=one.dtype, device=device), layout)


def _concatenate(batches: list[Any]) -> Nested:
    """Return ``batches`` concatenated.

    Raises:
        DataError: If they differ in shape.
        LoaderError: If they contain anything but tensors, lists, tuples and mappings.
    """
    try:
        return _concatenate_nested(batches)
    except LoaderError:  # which is a RuntimeError
        raise
    except RuntimeError as error:
        raise DataError(
            "`accelerator_config`: dispatch_batches=True (the default for iterable data sets) joins batches, but they "
            f"differ in shape: {error}. Pad all to the same length, or set dispatch_batches=False."
        ) from error


def _concatenate_nested(batches: list[Any]) -> Nested:
    """Return ``batches``, nested alike, with their tensors concatenated along the first axis."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, list | tuple):
        return rebuild(first, [_concatenate_nested(list(parts)) for parts in zip(*batches, strict=True)])
    if not isinstance(first, MAPPINGS):
        raise LoaderError(
            "`accelerator_config`: dispatch_batches=True (the default for iterable data sets) joins batches, but they "
            f"contain {described(first)}. Let `data_collator` return tensors alone, or set dispatch_batches=False."
        )
    kind: Any = type(first)
    mapping: Nested = kind({key: _concatenate_nested([batch[key] for batch in batches]) for key in first})
    return mapping
