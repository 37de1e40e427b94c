"""The windows handed to Lightning, one per update step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hf_compat.data.loader import PreparedDataLoader
from hf_compat.errors import DataError, LoaderError, described
from hf_compat.metrics import has_length
from hf_compat.plan import RunPlan


class Window:
    """The batches of one update step; what Lightning calls a batch.

    Not a dataclass: Lightning's precision plugins cast the tensors in those. The Trainer has them cast the inputs of
    each forward pass instead.

    Attributes:
        batches: The inputs of each forward pass of one device.
        num_items: ``num_items_in_batch``, the items that the loss is averaged over; None if the model does not take it.
        epoch: Epochs completed before this window.
        batches_before: Batches of this epoch before this window.
        epoch_batches: Batches of the whole epoch.
        is_complete: Whether the window ends in an update step; not so one that an iterable dataset cut short.
        drawn: Batches that were drawn together; more than are in the window if an update step ends between them, as
            after others of which an override had left some out.
        begins_update: Whether an update step begins with the window, not with one before.
        is_followed: Whether the next window has other batches that were drawn with these.
    """

    __slots__ = (
        "batches",
        "batches_before",
        "begins_update",
        "drawn",
        "epoch",
        "epoch_batches",
        "is_complete",
        "is_followed",
        "num_items",
    )

    def __init__(
        self,
        batches: list[Any],
        num_items: Any,
        epoch: int,
        batches_before: int,
        is_complete: bool,
        *,
        epoch_batches: int,
        drawn: int | None = None,
        begins_update: bool = True,
        is_followed: bool = False,
    ) -> None:
        self.batches = batches
        self.num_items = num_items
        self.epoch = epoch
        self.batches_before = batches_before
        self.is_complete = is_complete
        self.epoch_batches = epoch_batches
        self.drawn = len(batches) if drawn is None else drawn
        self.begins_update = begins_update
        self.is_followed = is_followed


@dataclass(frozen=True, slots=True, eq=False)
class ResumePosition:
    """Start of a resumed run in its first epoch."""

    epoch: int
    """Epochs completed."""
    windows: int
    """Windows of the epoch that are done."""
    batches: int
    """Batches of the epoch that are done."""
    rest: Any
    """The loader of the remaining batches of the epoch."""


class WindowSource(Protocol):
    """The loop that trains on the windows, by the methods that draw them."""

    def draw_window(self, batches: Iterator[Any], count: int) -> tuple[list[Any], Any]:
        """Return the next ``count`` of ``batches``, or fewer, and their number of items."""

    def should_stop(self) -> bool:
        """Return whether the epoch ends now."""

    def restore_rng(self) -> None:
        """Restore the random generators, once the batches before the resumed position are skipped."""

    def warn_of_empty_epoch(self) -> None:
        """Warn of an epoch without a batch."""


class WindowLoader:
    """An iterable of the windows of one epoch after another.

    ``iter`` is lazy: nothing is loaded, and no random number drawn, before the first window is requested. Lightning
    calls it before the first hook of the epoch.

    Attributes:
        loader: The loader of the current epoch; in a resumed epoch that of the remaining batches.
        follows_length: Whether each epoch has as many batches as the loader has when the epoch begins.

    Args:
        loader: The train loader, an iterable of batches.
        plan: The number of windows per epoch and of batches per window.
        source: Draws the batches of a window.
        next_epoch: Returns the epoch of the next ``iter``.
        start: Where a resumed run starts. Default: at the beginning.
        restores_without_batches: Whether the generators are restored even if no batch of the resumed epoch is left.
        asks_empty_loader: Whether a batch of a loader of length 0 is requested, which may draw random numbers.
        skips_before_telling_epoch: Whether the loader gets the epoch when it is read, in a resumed epoch that of the
            remaining batches; otherwise the one of all batches gets it as the epoch begins.
        asks_to_the_end: Whether all planned windows of an epoch are requested, also those after the end of its data:
            the source may have an effect each time, or have more batches later.
        follows_length: See above. Otherwise each epoch has as many as the plan says.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        plan: RunPlan,
        source: WindowSource,
        next_epoch: Callable[[], int],
        start: ResumePosition | None = None,
        *,
        restores_without_batches: bool = True,
        asks_empty_loader: bool = True,
        skips_before_telling_epoch: bool = True,
        asks_to_the_end: bool = False,
        follows_length: bool = False,
    ) -> None:
        self.loader: Any = loader
        self._loader = loader
        self._plan = self._epoch_plan = plan
        self._source = source
        self._next_epoch = next_epoch
        self._start = start
        self._restores_without_batches = restores_without_batches
        self._asks_empty_loader = asks_empty_loader
        self._skips_before_telling_epoch = skips_before_telling_epoch
        self._asks_to_the_end = asks_to_the_end
        self.follows_length = follows_length

    def __len__(self) -> int:
        """Return the number of windows of a full epoch; an upper bound if the train loader has no length."""
        return self._epoch_plan.update_steps_per_epoch

    def begin_epoch(self) -> None:
        """Set the epoch of the loader, unless that comes later, and take its length.

        A resumed epoch is as long as all of it, not as what is left.
        """
        epoch = self._next_epoch()
        if not self._skips_before_telling_epoch:
            _tell_epoch(self._loader, epoch)  # by which it may get another length
        if self.follows_length:
            self._epoch_plan = self._plan.with_epoch_of(len(self._loader))  # type: ignore[arg-type]  # it has a length

    def replace(self, loader: Any) -> None:
        """Read ``loader`` from the next epoch on.

        Raises:
            DataError: If it has another length: the update steps of a run are planned with that of the first.
        """
        lengths = [len(one) for one in (self._loader, loader) if has_length(one)]
        if len(set(lengths)) > 1:
            raise DataError(
                f"`reload_dataloaders_every_n_epochs`: the new train loader has {lengths[1]} batches, the first had "
                f"{lengths[0]}, for which update steps and learning rates are planned. Return a loader of the same "
                "length."
            )
        self._loader = loader

    def _tell_rest(self, start: ResumePosition) -> None:
        if self._skips_before_telling_epoch:
            _tell_epoch(start.rest, start.epoch)
        elif isinstance(start.rest, PreparedDataLoader):
            start.rest.iteration = start.epoch
        dataset = getattr(self._loader, "dataset", None)
        stream: Any = getattr(dataset, "unsharded", dataset)
        if start is self._start and isinstance(getattr(stream, "next_epoch", None), int):
            stream.next_epoch = start.epoch  # a stream of mosaicml-streaming, which counts its passes in this process

    def _windows_of(self, drawn: list[Any], num_items: Any, start: ResumePosition, position: int) -> list[Window]:
        """Return the windows of ``drawn``, after ``position`` batches: one, unless an update step ends among them."""
        plan, windows, begin = self._epoch_plan, [], 0
        for number in range(1, len(drawn) + 1):
            end = position + number
            ends_update = (end - start.batches) % plan.accumulate == 0 or end == plan.batches_per_epoch
            if ends_update or number == len(drawn):
                window = Window(
                    drawn[begin:number],
                    num_items,
                    start.epoch,
                    position + begin,
                    ends_update,
                    epoch_batches=plan.batches_per_epoch,
                    drawn=len(drawn),
                    begins_update=(position + begin - start.batches) % plan.accumulate == 0,
                    is_followed=number < len(drawn),
                )
                windows.append(window)
                begin = number
        return windows

    def __iter__(self) -> Iterator[Window]:
        """Yield the windows of the next epoch until it ends or a callback stops it."""
        epoch = self._next_epoch()
        resumed = self._start if self._start is not None and self._start.epoch == epoch else None
        start = resumed or ResumePosition(epoch, 0, 0, self._loader)
        self.loader = start.rest
        restores = resumed is not None
        if restores and start.batches == 0:
            self._source.restore_rng()
            restores = False
        self._tell_rest(start)
        plan = self._epoch_plan
        if not (plan.batches_per_epoch or self._asks_empty_loader):
            self._source.warn_of_empty_epoch()
            return
        batches = iter(start.rest)
        position = asked = start.batches
        makes_updates = stops = False
        for index in range(start.windows, plan.update_steps_per_epoch):
            is_last = index == plan.update_steps_per_epoch - 1
            count = plan.batches_per_epoch - asked if is_last else plan.accumulate
            asked += count
            drawn, num_items = _checked(self._source.draw_window(batches, count))
            if restores and (drawn or self._restores_without_batches):
                self._source.restore_rng()
                restores = False
            if drawn:
                # No batch is kept here while the window is trained on, nor later: Lightning does not read to the end.
                windows = self._windows_of(drawn, num_items, start, position)
                position += len(drawn)
                makes_updates = makes_updates or windows[0].is_complete
                del drawn, num_items
                yield windows.pop(0)
                while windows and not self._source.should_stop():
                    yield windows.pop(0)
            elif not self._asks_to_the_end:
                break
            if self._source.should_stop():
                stops = True
                break
        self._end_epoch(position, is_short=start.batches == 0 and not (makes_updates or stops))

    def _end_epoch(self, position: int, *, is_short: bool) -> None:
        plan = self._plan
        if position == 0:
            self._source.warn_of_empty_epoch()
        elif plan.num_train_epochs == sys.maxsize and is_short:
            raise DataError(
                f"`gradient_accumulation_steps={plan.accumulate}`: `train_dataset` yielded {position} batches in a "
                "pass, too few for an update step, and training would never end. Set it to at most that number, lower "
                "`per_device_train_batch_size`, or have the dataset repeat its samples."
            )


def _tell_epoch(loader: Any, epoch: int) -> None:
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)


def _checked(drawn: Any) -> tuple[list[Any], Any]:
    """Return what ``get_batch_samples`` of the Trainer returned.

    Raises:
        LoaderError: If that is no pair of batches and a number.
    """
    try:
        batches, num_items = drawn
        len(batches)
    except (TypeError, ValueError):
        raise LoaderError(
            f"`get_batch_samples` returned {described(drawn)}. Return a list of batches and their number of scored "
            "labels, or None if that is not counted: `return batch_samples, num_items_in_batch`."
        ) from None
    return batches, num_items
