"""The ``DataLoader`` the Trainer iterates: shuffled by seed and epoch, moved to the device, one batch ahead.

It does to a plain ``DataLoader`` what accelerate's ``prepare`` does in transformers' Trainer, draw for draw from the
random generators: a batch is yielded only after the next one was loaded, so that a collator that draws random numbers
and a model with dropout take turns in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hf_compat.data.stream_states import StatedBatch, StatingCollator, StreamStates, states_itself
from hf_compat.distributed import collectives
from hf_compat.distributed.processes import let_operations_end
from hf_compat.nested import find_batch_size, rebuild

__all__ = ["PreparedDataLoader", "loader_batching", "loader_settings", "move_to_device"]

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


def move_to_device(data: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return ``data`` with every tensor in it, however nested, on ``device``; containers keep their types."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, list | tuple):
        return rebuild(data, [move_to_device(item, device, non_blocking=non_blocking) for item in data])
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
        stream_states: Where a stream that can say so is after the batch yielded last; None for other data sets.

    Args:
        *args: As for ``DataLoader``.
        device: Where batches are moved; None leaves them on the host.
        skip: Batches left out at the start, though loaded.
        drops_last: Whether a partial last batch is dropped.
        non_blocking: Do not wait for the copies to the device.
        measures_last: Take ``remainder`` from the last batch itself, as accelerate does where one process reads the
            data for all.
        shared_generator: Where the order of samples comes from; set to the main process's state before each pass.
        **settings: As for ``DataLoader``.
    """

    own_settings: tuple[str, ...] = ("device", "drops_last", "non_blocking", "measures_last", "shared_generator")
    """Settings that a plain ``DataLoader`` does not have."""

    def __init__(
        self,
        *args: Any,
        device: torch.device | None = None,
        skip: int = 0,
        drops_last: bool = False,
        non_blocking: bool = False,
        measures_last: bool = False,
        shared_generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.device = device
        self.skip = skip
        self.drops_last = drops_last
        self.non_blocking = non_blocking
        self.measures_last = measures_last
        self.shared_generator = shared_generator
        self.iteration = 0
        self.end_of_dataloader = False
        self.remainder = -1
        self.stream_states: StreamStates | None = None
        self._start: StreamStates | None = None

    def track_stream_states(self, start: StreamStates | None = None) -> None:
        """Fill ``stream_states`` from the next pass on, if the data set is a stream that can say where it is.

        Args:
            start: Where the copies of the stream begin. Default: at the beginning.
        """
        if states_itself(self.dataset):
            self._start = start
            self.stream_states = StreamStates.of(self.num_workers, start)
            self.collate_fn = StatingCollator(self.collate_fn, self.dataset)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of epoch ``iteration``, loading one batch ahead."""
        if self.shared_generator is not None:
            self.shared_generator.set_state(collectives.broadcast_object(self.shared_generator.get_state()))
        self.set_epoch(self.iteration)
        self.end_of_dataloader = False
        self.remainder = self._count_remainder()
        if self.stream_states is not None:
            self.stream_states = StreamStates.of(self.num_workers, self._start)
        batches = self.plain_iterator()
        missing = object()
        index = 0
        batch = next(batches, missing)
        while batch is not missing:
            if isinstance(batch, StatedBatch):
                assert self.stream_states is not None, "a stream that says where it is"
                self.stream_states.note(batch)
                batch = batch.batch
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

    def plain_iterator(self) -> Iterator[Any]:
        """Return what a plain ``DataLoader`` iterates with; it draws once from the global generator."""
        if self.num_workers > 0:  # processes may be forked for it
            let_operations_end()
        return super().__iter__()

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
        size = self.batch_size or getattr(sampler, "batch_size", None)
        if size is None or getattr(sampler, "split_batches", False):
            return size
        return size * int(getattr(sampler, "num_processes", 1))

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


def loader_batching(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the settings that say how ``loader`` makes batches of its data set."""
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.sampler, BatchSampler):  # the sampler itself gives lists of indices
        return {"sampler": loader.sampler, "batch_size": loader.batch_size}
    return {"batch_sampler": loader.batch_sampler}


def loader_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the settings of ``loader``, besides where its samples come from, that another one like it is made with."""
    own = loader.own_settings if isinstance(loader, PreparedDataLoader) else ()
    settings = {name: getattr(loader, name) for name in (*_KEPT_SETTINGS, *own) if hasattr(loader, name)}
    if isinstance(settings["collate_fn"], StatingCollator):  # of this loader's own data set
        settings["collate_fn"] = settings["collate_fn"].collate
    return settings
