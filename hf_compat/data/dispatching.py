"""A loader whose data one process reads for all: what ``dispatch_batches`` asks for, and streams by default."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hf_compat.data.loader import PreparedDataLoader, move_to_device
from hf_compat.data.stream_states import StatedBatch, StreamStates
from hf_compat.distributed import collectives
from hf_compat.errors import DataError
from hf_compat.nested import find_batch_size, map_nested, rebuild

__all__ = ["DispatchingDataLoader"]


class DispatchingDataLoader(PreparedDataLoader):
    """A ``DataLoader`` that only process 0 goes through; every process yields its part of what that one reads.

    Process 0 reads one round ahead: a batch for each process or, with ``split``, one batch to be split. A last round
    that cannot be shared out evenly is filled up with samples of the first.

    Args:
        *args: As for ``DataLoader``.
        split: Split each batch over the processes, rather than read one for each.
        lead: Batches that process 0 leaves out before it reads the first round.
        processes: How many see different batches.
        process: The number of this one among them.
        **settings: As for ``PreparedDataLoader``.

    References:
        Same batches as accelerate ``data_loader.py`` ``DataLoaderDispatcher``.
    """

    own_settings = (*PreparedDataLoader.own_settings, "split", "processes", "process")

    def __init__(
        self, *args: Any, split: bool = False, lead: int = 0, processes: int, process: int, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.split = split
        self.lead = lead
        self.processes = processes
        self.process = process
        self._round: list[StatedBatch] = []

    def track_stream_states(self, start: StreamStates | None = None) -> None:
        """Fill ``stream_states``, on process 0 alone, from the next pass on, if the data set can say where it is."""
        super().track_stream_states(start)
        if collectives.get_rank() != 0:
            self.stream_states = None

    def __len__(self) -> int:
        batches = super().__len__()
        if self.split:
            return batches
        rounds = batches / self.processes
        return math.floor(rounds) if self.drops_last else math.ceil(rounds)

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a full round."""
        size = super().total_batch_size
        return size if size is None or self.split else size * self.processes

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield this process's batches of epoch ``iteration``."""
        self.set_epoch(self.iteration)
        self.end_of_dataloader = False
        self.remainder = self._count_remainder()
        # On every process, so that all draw the same from the global generator.
        batches = self.plain_iterator()
        self._lead(batches)
        first: Any = None
        index = 0
        current = self._share(self._read(batches))
        while current is not None:
            if first is None:
                first = self._first_samples(current)
            used = self._round
            following = self._share(self._read(batches))
            if following is None:
                self.end_of_dataloader = True
                self.remainder = find_batch_size(current) or -1
            mine = self._part(current, first)
            self._note(used)
            if index >= self.skip:
                yield mine
            index += 1
            current = following
        self.iteration += 1

    def _read(self, batches: Iterator[Any]) -> Any:
        """Return what the main process reads for one round, None at the end and on the others."""
        if collectives.get_rank() != 0:
            return None
        count = 1 if self.split else self.processes
        read = [batch for _, batch in zip(range(count), batches, strict=False)]
        if not read or (len(read) < count and self.drops_last):
            return None
        self._round = [batch for batch in read if isinstance(batch, StatedBatch)]
        return _joined([batch.batch if isinstance(batch, StatedBatch) else batch for batch in read])

    def _lead(self, batches: Iterator[Any]) -> None:
        """Begin the states anew and leave out what a resumed run was given of the first round of workers."""
        if self.stream_states is not None:
            self.stream_states = StreamStates.of(self.num_workers, self._start)
            self._note([batch for _, batch in zip(range(self.lead), batches, strict=False)])

    def _note(self, used: list[StatedBatch]) -> None:
        if self.stream_states is not None:
            for stated in used:
                self.stream_states.note(stated)

    def _first_samples(self, current: Any) -> Any:
        """Return the samples that fill up the last round: the first of the pass, which a resumed run is told."""
        told = None if self._start is None else self._start.first
        leaves = iter(told or ())
        first = collectives.map_tensors(
            lambda tensor: tensor[: self.processes] if told is None else next(leaves).to(tensor.device), current
        )
        if self.stream_states is not None:
            self.stream_states.first = kept = []
            collectives.map_tensors(lambda tensor: kept.append(tensor.cpu().clone()), first)
        return first

    def _share(self, batch: Any) -> Any:
        """Return the main process's ``batch`` on every process, on its device; None at the end."""
        is_main = collectives.get_rank() == 0
        layout = None if batch is None else collectives.map_tensors(_Layout, batch)
        layout = collectives.broadcast_object(layout)
        if layout is None:
            return None
        target = self.device or torch.device("cpu")
        batch = move_to_device(batch, target, non_blocking=self.non_blocking) if is_main else _empty(layout, target)
        return collectives.broadcast(batch)

    def _part(self, batch: Any, first: Any) -> Any:
        """Return this process's samples of ``batch``."""
        count = self.processes
        size, odd = divmod(find_batch_size(batch) or 0, count)
        if odd and self.end_of_dataloader and not self.drops_last:
            batch = _joined([batch, first])
            size += 1
        start = self.process * size
        return collectives.map_tensors(lambda tensor: tensor[start : start + size], batch)


class _Layout:
    """Shape and dtype of a tensor, to make room for it before it is received."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype


def _empty(layout: Any, device: torch.device) -> Any:
    return map_nested(lambda one: torch.empty(one.shape, dtype=one.dtype, device=device), layout)


def _joined(batches: list[Any]) -> Any:
    """Return ``batches`` as one.

    Raises:
        DataError: If they differ in shape.
    """
    try:
        return _join(batches)
    except RuntimeError as error:
        raise DataError(
            "`accelerator_config`: dispatch_batches=True (what streams are given by default) joins batches, but they "
            f"differ in shape: {error}. Pad all to one length, or set dispatch_batches=False."
        ) from error


def _join(batches: list[Any]) -> Any:
    """Return ``batches``, nested alike, with their tensors joined along the first axis."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, list | tuple):
        return rebuild(first, [_join(list(parts)) for parts in zip(*batches, strict=True)])
    return type(first)({key: _join([batch[key] for batch in batches]) for key in first})
