"""The ``DataLoader`` that the Trainer iterates over: shuffled by seed and epoch, on the device, prefetching one batch.

It does to a plain ``DataLoader`` what accelerate's ``prepare`` does in transformers' Trainer, with the same draws from
the random generators: a batch is yielded only after the next one was loaded, so that a collator that draws random
numbers and a model with dropout draw in the same order.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset

from hf_compat.data.rank_batches import BatchShard
from hf_compat.data.stream_states import BatchWithState, StateCollator, StreamStates, is_stateful_stream
from hf_compat.data.transfer import move_batch
from hf_compat.data.workers import keep_queues_open, outliving
from hf_compat.distributed import collectives
from hf_compat.distributed.processes import wait_for_gloo_threads
from hf_compat.errors import LoaderError, described
from hf_compat.metrics import has_length
from hf_compat.nested import find_batch_size

__all__ = ["FirstBatches", "PreparedDataLoader", "check_is_loader", "loader_batching", "loader_settings"]

_PASSES = itertools.count(1)
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


class PreparedDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that knows its epoch and its last batch, and prefetches one batch.

    Attributes:
        iteration: The epoch of the next ``iter``; incremented after each epoch, or set by ``set_epoch``.
        end_of_dataloader: Whether the batch yielded last is the last of the pass.
        in_pass: Whether a pass has begun, and no further batch requested after its last.
        pass_number: The number of the last pass, counted over all loaders of this process.
        remainder: Samples in the last, partial batch; 0 if all are full, -1 if unknown or dropped.
        stream_states: The states of a stateful stream after the batch yielded last; None for other data sets.

    Args:
        *args: As for ``DataLoader``.
        device: The device that batches are moved to; None leaves them on the CPU.
        skip: Batches to load but not to yield at the start.
        drops_partial_batch: Whether a partial last batch is dropped.
        non_blocking: Copy to the device asynchronously.
        remainder_from_batch: Take ``remainder`` from the last batch itself, as accelerate does where rank 0 reads the
            data for all ranks.
        synchronized_generator: Draws the order of samples; set to the state of rank 0's before each pass.
        shares_are_own: Whether each rank reads a loader of its own: which samples others read is not known.
        always_tells_dataset: Call the data set's ``set_epoch`` also where accelerate does not.
        **settings: As for ``DataLoader``.
    """

    own_settings: tuple[str, ...] = (
        "always_tells_dataset",
        "device",
        "drops_partial_batch",
        "non_blocking",
        "remainder_from_batch",
        "shares_are_own",
        "synchronized_generator",
    )
    """Settings that a plain ``DataLoader`` does not have."""

    def __init__(
        self,
        *args: Any,
        device: torch.device | None = None,
        skip: int = 0,
        drops_partial_batch: bool = False,
        non_blocking: bool = False,
        remainder_from_batch: bool = False,
        synchronized_generator: torch.Generator | None = None,
        shares_are_own: bool = False,
        always_tells_dataset: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.device = device
        self.skip = skip
        self.drops_partial_batch = drops_partial_batch
        self.non_blocking = non_blocking
        self.remainder_from_batch = remainder_from_batch
        self.synchronized_generator = synchronized_generator
        self.shares_are_own = shares_are_own
        self.always_tells_dataset = always_tells_dataset
        self.iteration = 0
        self.end_of_dataloader = False
        self.in_pass = False
        self.pass_number = 0
        self.remainder = -1
        self.stream_states: StreamStates | None = None
        self._start: StreamStates | None = None

    def track_stream_states(self, start: StreamStates | None = None) -> None:
        """Keep ``stream_states`` up to date from the next pass on, if the data set is a stateful stream.

        Args:
            start: The states that the copies of the stream start from. Default: the beginning.
        """
        if is_stateful_stream(self.dataset):
            self._start = start
            self.stream_states = StreamStates.of(self.num_workers, start)
            self.collate_fn = StateCollator(self.collate_fn, self.dataset)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of epoch ``iteration``, prefetching one batch."""
        if self.synchronized_generator is not None:
            self.synchronized_generator.set_state(collectives.broadcast_object(self.synchronized_generator.get_state()))
        self.begin_pass()
        if self.stream_states is not None:
            self.stream_states = StreamStates.of(self.num_workers, self._start)
        batches = self.plain_iterator()
        missing = object()
        index = 0
        batch = next(batches, missing)
        while batch is not missing:
            if isinstance(batch, BatchWithState):
                assert self.stream_states is not None, "the collator is a StateCollator"
                self.stream_states.update(batch)
                batch = batch.batch
            if self.device is not None:
                batch = move_batch(batch, self.device, non_blocking=self.non_blocking)
            following = next(batches, missing)
            self.end_of_dataloader = following is missing
            if self.end_of_dataloader and self.remainder_from_batch:
                self.remainder = find_batch_size(batch) or -1
            current, batch = [batch], following
            if index >= self.skip:
                yield current.pop()  # who reads no further has it alone, and the device its memory back
            index += 1
        self.end_pass()

    def begin_pass(self) -> None:
        """Begin a pass of epoch ``iteration``."""
        self.set_epoch(self.iteration)
        self.end_of_dataloader, self.in_pass, self.pass_number = False, True, next(_PASSES)
        self.remainder = self._count_remainder()

    def end_pass(self) -> None:
        """End a pass over all batches."""
        self.in_pass = False
        self.iteration += 1

    def plain_iterator(self) -> Iterator[Any]:
        """Return the iterator of a plain ``DataLoader``; it draws once from the global generator."""
        if self.num_workers > 0:  # workers may be forked
            wait_for_gloo_threads()
        return super().__iter__()

    def _get_iterator(self) -> Any:
        with outliving([signal.SIGTERM]):  # persistent workers may start in an evaluation ahead of a run that saves
            iterator = super()._get_iterator()
        keep_queues_open(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``, also of the samplers and, if ``tells_dataset``, the data set."""
        self.iteration = epoch
        sampler = getattr(self.batch_sampler, "sampler", None)
        dataset = self.dataset if self.tells_dataset else None
        for part in (self.batch_sampler, getattr(sampler, "batch_sampler", None), sampler, dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    @property
    def tells_dataset(self) -> bool:
        """Whether ``set_epoch`` calls the data set's, which it may have.

        As in accelerate, not where the batch sampler wraps another whose sampler has one: on several ranks, and where
        batches are skipped.
        """
        wrapped: Any = getattr(self.batch_sampler, "batch_sampler", None)
        if isinstance(wrapped, BatchShard):
            wrapped = wrapped.batch_sampler
        return self.always_tells_dataset or not hasattr(getattr(wrapped, "sampler", None), "set_epoch")

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a full batch over all ranks; None if the sampler has no ``batch_size``."""
        sampler = self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler
        size = self.batch_size or getattr(sampler, "batch_size", None)
        if size is None or getattr(sampler, "split_batches", False):
            return size
        return size * int(getattr(sampler, "num_processes", 1))

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set, over all ranks."""
        return len(self.dataset)  # type: ignore[arg-type]

    def _count_remainder(self) -> int:
        if self.drops_partial_batch or self.shares_are_own:
            return -1
        batch_size = self.total_batch_size
        try:
            length = self.total_dataset_length
        except (TypeError, NotImplementedError, AttributeError):
            return -1
        return length % batch_size if batch_size else -1


def check_is_loader(loader: object, source: str) -> None:
    """Raise if what ``source`` returned cannot be iterated over.

    Raises:
        LoaderError: If it is no iterable.
    """
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise LoaderError(
            f"{source} returned {described(loader)}. Return a `DataLoader`, or another iterable of batches."
        )


def loader_batching(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the keywords of ``loader`` that define its batches."""
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.sampler, BatchSampler):  # the sampler yields lists of indices
        return {"sampler": loader.sampler, "batch_size": loader.batch_size}
    return {"batch_sampler": loader.batch_sampler}


def loader_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return all other keywords of ``loader``, to make another one like it."""
    own = loader.own_settings if isinstance(loader, PreparedDataLoader) else ()
    settings = {name: getattr(loader, name) for name in (*_KEPT_SETTINGS, *own) if hasattr(loader, name)}
    if isinstance(settings["collate_fn"], StateCollator):  # bound to this loader's own data set
        settings["collate_fn"] = settings["collate_fn"].collate_fn
    return settings


class FirstBatches:
    """A data loader cut off after its first ``batches`` batches; everything else is the wrapped loader's.

    Args:
        loader: The loader.
        batches: How many there are at most, on each rank.
        ranks: Ranks that get different batches.
    """

    def __init__(self, loader: Any, batches: int, ranks: int) -> None:
        self._loader = loader
        self._batches = batches
        self._ranks = ranks
        self._is_cut = False

    def __len__(self) -> int:
        return min(self._batches, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        return self._first(iter(self._loader))

    def _first(self, batches: Iterator[Any]) -> Iterator[Any]:
        for count, batch in enumerate(itertools.islice(batches, self._batches), 1):
            self._is_cut = count == self._batches
            yield batch
        if isinstance(self._loader, PreparedDataLoader):
            self._loader.in_pass = False  # though there may be more batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["_loader"], name)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch in use is the last, of the loader or before the cut; not there if the loader has none."""
        return bool(self._loader.end_of_dataloader) or self._is_cut

    @property
    def remainder(self) -> int:
        """Samples in the last, partial batch of the loader, which has duplicates; 0 if the cut is before it."""
        is_before = self._is_cut and not self._loader.end_of_dataloader
        return 0 if is_before else int(self._loader.remainder)

    @property
    def dataset(self) -> Any:
        """The dataset cut to the number of samples in those batches, if known; which samples they are is not."""
        dataset: Any = self._loader.dataset
        own = getattr(self._loader, "batch_size", None)
        size: int | None = getattr(self._loader, "total_batch_size", own and own * self._ranks)
        if size is None or not has_length(dataset):
            return dataset
        samples: Any = dataset
        return Subset(samples, range(min(len(dataset), self._batches * size)))
