"""The ``DataLoader`` that the Trainer iterates over: shuffled by seed and epoch, on the device, prefetching one batch.

It does to a plain ``DataLoader`` what accelerate's ``prepare`` does in transformers' Trainer, with the same draws from
the random generators: a batch is yielded only after the next one was loaded, so that a collator that draws random
numbers and a model with dropout draw in the same order.
"""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset
from torch.utils.data._utils import worker as torch_worker

from hf_compat.data.rank_batches import BatchShard, StreamShard, check_split_batches
from hf_compat.data.samplers import SeedableRandomSampler, is_balanced
from hf_compat.data.stream_states import BatchWithState, StateCollator, StreamStates, is_stateful_stream
from hf_compat.distributed import collectives
from hf_compat.distributed.processes import wait_for_gloo_threads
from hf_compat.errors import LoaderError, described
from hf_compat.metrics import has_length
from hf_compat.nested import MAPPINGS, SEQUENCES, Nested, find_batch_size, leaves, map_nested, rebuild

# A loader that tells of its last batch.


class TrackedLoader:
    """A loader that says of the batch it has yielded last whether it is the last, and how many samples it has.

    A length is a hint: there may be more batches, or fewer. A prepared loader reads a batch ahead and knows its end;
    another one is read ahead here if ``knows_end``, or if it has no length that could say.

    Args:
        loader: The loader.
        knows_end: Whether to read a loader ahead that was not prepared. transformers does not, so random numbers
            that batches and model draw come in another order.

    Attributes:
        is_prepared: Whether the loader is one that the Trainer, or its accelerator, has prepared.
        end_of_dataloader: Whether the batch in use is the last; by the length where nothing is read ahead.
        remainder: Samples in the last, partial batch; 0 if all are full, -1 if unknown.
    """

    def __init__(self, loader: Iterable[Any], *, knows_end: bool) -> None:
        self._loader: Any = loader
        self.is_prepared = hasattr(loader, "end_of_dataloader")
        self._reads_ahead = not self.is_prepared and (knows_end or not has_length(loader))
        self.end_of_dataloader = False
        self.remainder = -1

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        if self._reads_ahead:
            for batch, is_last in _with_ends(loader):
                self.end_of_dataloader, self.remainder = is_last, getattr(loader, "remainder", -1)
                yield batch
            return
        for count, batch in enumerate(loader, 1):
            self.end_of_dataloader = bool(loader.end_of_dataloader) if self.is_prepared else count == len(loader)
            self.remainder = getattr(loader, "remainder", -1)
            yield batch


def _with_ends(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each batch, and whether it is the last: the next one has been read."""
    rest = iter(batches)
    for batch in rest:
        for following in rest:
            yield batch, False
            batch = following
        yield batch, True


# Loader workers that outlive the signals on which a run saves, and that end with the run.


_QUEUES = ("_index_queues", "_worker_result_queue", "_workers_done_event")
"""The means by which an iterator of torch's ``DataLoader`` ends its workers; it has none without workers."""
_PARENT_CHECK_SECONDS = 5.0
"""Seconds between two checks of a worker whether its parent process is gone; torch checks as often."""

_run_worker = torch_worker._worker_loop
_outliving_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


@contextmanager
def ignoring_signals(signals: Collection[int]) -> Iterator[None]:
    """Context in which every ``DataLoader`` starts workers that keep running on ``signals``.

    A scheduler signals all processes of a job, and without its workers a run could not finish the update step under
    way. A worker obeys a signal of its parent process, by which torch ends a worker that hangs, and exits when that
    process is gone. A context within another adds nothing.
    """
    # macOS and Windows: a handler does not see the sender, and workers end as torch has it.
    if not hasattr(signal, "sigtimedwait") or torch_worker._worker_loop is not _run_worker:
        yield
        return
    # What torch starts workers with, and runs in them; loaders have no setting that reaches those of other people's.
    torch_worker._worker_loop = functools.partial(_run_outliving, tuple(signals))
    make_iterator = DataLoader._get_iterator
    start = functools.partialmethod(_start_outliving, tuple(signals), make_iterator)
    DataLoader._get_iterator = start  # type: ignore[assignment]
    try:
        yield
    finally:
        torch_worker._worker_loop = _run_worker
        DataLoader._get_iterator = make_iterator  # type: ignore[method-assign]


def has_short_lived() -> bool:
    """Return whether this process has children that a signal ends, as workers not made in :func:`ignoring_signals`."""
    return any(child not in _outliving_workers for child in multiprocessing.active_children())


def _start_outliving(loader: DataLoader[Any], signals: Collection[int], make: Callable[[Any], Any]) -> Any:
    """Return the iterator that ``make`` makes of ``loader``, whose workers have ``signals`` blocked from their start.

    So has the process that forks the workers of ``forkserver``, if it is started here.
    """
    if loader.num_workers == 0:
        return make(loader)
    if (loader.multiprocessing_context or multiprocessing).get_start_method() != "fork":
        resource_tracker.ensure_running()  # which unblocks the signals where it starts its process
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        iterator: Any = make(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _outliving_workers.update(iterator._workers)
    return iterator


def _run_outliving(signals: Collection[int], *args: Any) -> None:
    """Run torch's worker, with ``signals`` blocked in all of its threads but one that waits for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in case an older process forks the workers
    threading.Thread(target=_exit_with_parent, args=(signals,), daemon=True).start()
    _run_worker(*args)


def _exit_with_parent(signals: Collection[int]) -> None:
    """Exit on a signal of the parent process, or when that is gone; without exception, which a hung thread ignores."""
    parent, starter = multiprocessing.parent_process(), os.getppid()  # a forkserver starts workers of its clients
    assert parent is not None, "torch runs its workers in processes of multiprocessing"
    while os.getppid() == starter and parent.is_alive():
        received = signal.sigtimedwait(signals, _PARENT_CHECK_SECONDS)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)


def keep_queues_open(iterator: object) -> None:
    """Keep the queues of ``iterator``, of a data loader with workers, open for as long as it lives.

    It ends its workers when it is freed. Where it is freed together with all that a Trainer holds, the garbage
    collector may close its queues before: the workers are not told, and five seconds are waited for each.
    """
    queues = [getattr(iterator, name) for name in _QUEUES if hasattr(iterator, name)]
    if queues:
        # What a finalizer refers to is no garbage, and so is finalized after the iterator.
        weakref.finalize(iterator, queues.clear).atexit = False


# Moving batches to the device of a rank: to a GPU while it computes on the batches before.


_DataT = TypeVar("_DataT")


def move_to_device(data: _DataT, device: torch.device, *, non_blocking: bool = False) -> _DataT:
    """Return ``data`` on ``device``: what has a method ``to`` moves itself, however nested; containers are kept.

    Such objects are tensors, a tokenizer's ``BatchEncoding``, a ``PackedSequence``, the batch of a graph library. Their
    ``to`` is called on the device that they are on too.

    References:
        As accelerate ``utils/operations.py`` ``send_to_device``.
    """
    moved: Any = data
    if type(data) is dict:  # nearly every batch
        moved = {
            key: value
            if type(value) is Tensor and value.device == device
            else move_to_device(value, device, non_blocking=non_blocking)
            for key, value in moved.items()
        }
    elif hasattr(moved, "to"):
        try:
            moved = moved.to(device, non_blocking=non_blocking)
        except TypeError:  # one of somebody else's
            moved = moved.to(device)
    elif isinstance(data, SEQUENCES):
        moved = rebuild(data, [move_to_device(item, device, non_blocking=non_blocking) for item in data])
    elif isinstance(data, MAPPINGS):
        items = {key: move_to_device(value, device, non_blocking=non_blocking) for key, value in data.items()}
        moved = type(data)(items)  # type: ignore[call-arg]
    return moved  # type: ignore[no-any-return]


def move_batch(batch: _DataT, device: torch.device, *, non_blocking: bool = False) -> _DataT:
    """Return ``batch`` on ``device``, as :func:`move_to_device` does; to a GPU it is copied on a stream of its own.

    On the stream of the computation a copy would start when everything launched before it has ended. Unless the copy is
    asynchronous the host would wait for that too, and the GPU then for the host to launch the next step.

    Args:
        batch: Tensors, however nested. If some of them cannot be copied so, all are moved on the current stream: those
            that are on a GPU already, those of other layouts or of a subclass, and those in objects that move
            themselves.
        device: Where to.
        non_blocking: Do not wait for the copy of pinned memory either, which must then not be written to.
    """
    if device.type != "cuda" or not _is_plain_in_host_memory(batch):
        return move_to_device(batch, device, non_blocking=non_blocking)
    copies, computation = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        moved = move_to_device(batch, device, non_blocking=non_blocking)
    computation.wait_stream(copies)
    for leaf in leaves(moved):
        if isinstance(leaf, Tensor) and leaf.is_cuda:  # a BatchEncoding leaves lists of tensors where they are
            leaf.record_stream(computation)  # or a later copy might be given its memory while it is still read
    return moved


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of the copies to ``device``: one, since the memory of each stream is cached for itself."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _is_plain_in_host_memory(data: object) -> bool:
    """Return whether all that :func:`move_to_device` moves are ordinary tensors on the CPU, which can be found."""
    if isinstance(data, Tensor):
        return type(data) is Tensor and data.layout is torch.strided and data.device.type == "cpu"
    if hasattr(data, "to") and not (isinstance(data, MAPPINGS) and type(data).__module__.startswith("transformers.")):
        return False
    if isinstance(data, SEQUENCES):
        return all(map(_is_plain_in_host_memory, data))
    return not isinstance(data, MAPPINGS) or all(map(_is_plain_in_host_memory, data.values()))


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
        with ignoring_signals(
            [signal.SIGTERM]
        ):  # persistent workers may start in an evaluation ahead of a run that saves
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
    """A data loader cut off after its first ``most`` batches; everything else is the wrapped loader's.

    Args:
        loader: The loader.
        most: How many there are at most, on each rank.
        ranks: Ranks that get different batches.
    """

    def __init__(self, loader: Any, most: int, ranks: int) -> None:
        self._loader = loader
        self.most = most
        self._ranks = ranks
        self._is_cut = False

    def __len__(self) -> int:
        return min(self.most, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        return self._first(iter(self._loader))

    def _first(self, batches: Iterator[Any]) -> Iterator[Any]:
        for count, batch in enumerate(itertools.islice(batches, self.most), 1):
            self._is_cut = count == self.most
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
        return Subset(samples, range(min(len(dataset), self.most * size)))


# A loader whose data rank 0 reads for all ranks: `dispatch_batches=True`, the default for iterable data sets.


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
        LoaderError: If they differ in shape, or contain anything but tensors, lists, tuples and mappings.
    """
    try:
        return _concatenate_nested(batches)
    except LoaderError:  # which is a RuntimeError
        raise
    except RuntimeError as error:
        raise LoaderError(
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


# Preparing a plain `DataLoader`: shuffled by seed and epoch, and sharded over the data-parallel ranks.


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
