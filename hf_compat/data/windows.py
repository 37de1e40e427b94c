"""The windows handed to Lightning, one per update step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.releases import Semantics
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


class WindowLoader:
    """The windows of each epoch, for Lightning and for the loop: how many, of how many batches, from which loader.

    The loop draws them itself. This is Lightning's ``train_dataloader``; iterating over it yields the loader's batches.

    Args:
        loader: The train loader, an iterable of batches.
        plan: The number of windows per epoch and of batches per window.
        start: Where a resumed run starts; None for the beginning.
        semantics: Whether the loader gets the epoch when it is read, in a resumed epoch that of the remaining batches,
            or the one of all batches as the epoch begins; whether each epoch has as many batches as the plan says.

    Attributes:
        train_loader: The train loader, of which the next epoch is read.
        loader: The loader of the current epoch; in a resumed epoch that of the remaining batches.
        plan: The windows and batches of the current epoch.
        start: Where a resumed run starts; None for the beginning.
        follows_length: Whether each epoch has as many batches as the loader has when the epoch begins.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        plan: RunPlan,
        start: ResumePosition | None,
        semantics: Semantics,
    ) -> None:
        self.loader: Any = loader
        self.train_loader: Any = loader
        self.plan = plan
        self.start, self._epoch = start, 0
        self._skips_before_telling_epoch = semantics.skips_before_telling_epoch
        is_whole = has_length(loader) and len(loader) == plan.batches_per_epoch
        self.follows_length = is_whole and not semantics.plans_equal_epochs

    def __len__(self) -> int:
        """Return the number of windows of a full epoch; an upper bound if the train loader has no length."""
        return self.plan.update_steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch; nothing is loaded before the first: Lightning calls it ahead of its hooks."""
        yield from self.loader

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader, unless that comes later, and take its length.

        A resumed epoch is as long as all of it, not as what is left.
        """
        self._epoch = epoch
        if not self._skips_before_telling_epoch:
            _set_epoch(self.train_loader, epoch)  # by which it may get another length
        if self.follows_length:
            self.plan = self.plan.with_epoch_of(len(self.train_loader))

    def open_epoch(self) -> ResumePosition:
        """Return where the epoch begins, and what it reads, which is now ``loader``."""
        start = self.start
        if start is None or start.epoch != self._epoch:
            start = ResumePosition(self._epoch, 0, 0, self.train_loader)
        self.loader = start.rest
        return start

    def replace(self, loader: Any) -> None:
        """Read ``loader`` from the next epoch on.

        Raises:
            DataError: If it has another length: the update steps of a run are planned with that of the first.
        """
        lengths = [len(one) for one in (self.train_loader, loader) if has_length(one)]
        if len(set(lengths)) > 1:
            raise DataError(
                f"`reload_dataloaders_every_n_epochs`: the new train loader has {lengths[1]} batches, the first had "
                f"{lengths[0]}, for which update steps and learning rates are planned. Return a loader of the same "
                "length."
            )
        self.train_loader = loader

    def tell_epoch(self, start: ResumePosition) -> None:
        """Set the epoch of what is read from ``start`` on."""
        if self._skips_before_telling_epoch:
            _set_epoch(start.rest, start.epoch)
        elif isinstance(start.rest, PreparedDataLoader):
            start.rest.iteration = start.epoch
        dataset = getattr(self.train_loader, "dataset", None)
        stream: Any = getattr(dataset, "unsharded", dataset)
        if start is self.start and isinstance(getattr(stream, "next_epoch", None), int):
            stream.next_epoch = start.epoch  # a stream of mosaicml-streaming, which counts its passes in this process

    def sizes(self, start: ResumePosition) -> Iterator[int]:
        """Yield how many batches to draw for each window from ``start`` on; the last gets what the plan has left."""
        plan, position = self.plan, start.batches
        for index in range(start.windows + 1, plan.update_steps_per_epoch + 1):
            is_last = index == plan.update_steps_per_epoch
            yield plan.batches_per_epoch - position if is_last else plan.accumulate
            position += plan.accumulate

    def split(self, drawn: list[Any], num_items: Any, start: ResumePosition, position: int) -> list[Window]:
        """Return the windows of ``drawn``, after ``position`` batches: one, unless an update step ends among them."""
        plan, windows, begin = self.plan, [], 0
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

    def check_end(self, start: ResumePosition, position: int) -> None:
        """Check an epoch from ``start`` on that ended after ``position`` batches, and without an update step.

        Raises:
            DataError: If training would never end.
        """
        if not self.plan.has_length and start.batches == 0:
            raise DataError(
                f"`gradient_accumulation_steps={self.plan.accumulate}`: `train_dataset` yielded {position} batches in "
                "a pass, too few for an update step, and training would never end. Set it to at most that number, "
                "lower `per_device_train_batch_size`, or have the dataset repeat its samples."
            )


def _set_epoch(loader: Any, epoch: int) -> None:
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)


def checked_draw(drawn: Any) -> tuple[list[Any], Any]:
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
