"""Windows: which batches make an update step, also at the end of an epoch and after a resume."""

import weakref
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, IterableDataset

from hf_compat.data.loader import prepare_dataloader
from hf_compat.data.skipping import skip_batches
from hf_compat.data.windows import ResumePosition, WindowLoader
from hf_compat.plan import build_plan


class Source:
    """Draws batches as the Trainer does and counts what it is told."""

    def __init__(self, stop_after=None):
        self.drawn, self.restored, self.empty, self.stop_after = 0, [], 0, stop_after

    def draw_window(self, batches, count):
        window = [batch for _, batch in zip(range(count), batches, strict=False)]
        self.drawn += len(window)
        return window, len(window)

    def should_stop(self):
        return self.stop_after is not None and self.drawn >= self.stop_after

    def restore_rng(self):
        self.restored.append(self.drawn)

    def warn_of_empty_epoch(self):
        self.empty += 1


class Numbers(IterableDataset):
    """The numbers 0 to ``count - 1``, without a length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def window_loader(loader, *, batches, accumulate, epoch=0, start=None, source=None, max_steps=-1):
    """Return the ``WindowLoader`` of a run."""
    args = SimpleNamespace(gradient_accumulation_steps=accumulate, max_steps=max_steps, num_train_epochs=3)
    plan = build_plan(args, batches=batches, examples=batches, samples_per_update_step=accumulate)
    return WindowLoader(loader, plan, source or Source(), lambda: epoch, start)


def windows(loader, **given):
    """Return the windows of one epoch as lists of numbers, and whether each makes an update step."""
    found = window_loader(loader, **given)
    return [(torch.cat(window.batches).tolist(), window.is_complete) for window in found]


def test_windows_of_an_epoch():
    """Batches are grouped in order; the last window is short and still steps."""
    loader = DataLoader(range(5), batch_size=1)
    assert windows(loader, batches=5, accumulate=2) == [([0, 1], True), ([2, 3], True), ([4], True)]


def test_the_last_window_is_not_kept():
    """Lightning reads no further than the last window; its batches are freed with it nevertheless."""
    found = iter(window_loader(prepare_dataloader(DataLoader(range(3), batch_size=1)), batches=3, accumulate=2))
    next(found)
    last = next(found)
    batch = weakref.ref(last.batches[0])
    assert batch().tolist() == [2]
    del last
    assert batch() is None


def test_iterable_cut_short_leaves_a_window_without_step():
    """Where no length is known, a window that an ending data set cut short makes no update step, as upstream."""
    loader = prepare_dataloader(DataLoader(Numbers(3), batch_size=1))
    assert windows(loader, batches=None, accumulate=2, max_steps=4) == [([0, 1], True), ([2], False)]


def test_resume_goes_on_after_the_windows_done():
    """A resumed epoch leaves out the windows already done, then restores the random generators, once."""
    source = Source()
    loader = prepare_dataloader(DataLoader(range(6), batch_size=1))
    assert windows(
        loader, batches=6, accumulate=2, start=ResumePosition(0, 1, 2, skip_batches(loader, 2)), source=source
    ) == [
        ([2, 3], True),
        ([4, 5], True),
    ]
    assert source.restored == [2]


def test_resume_at_an_epoch_boundary_restores_before_drawing():
    """With nothing to leave out the generators are restored before the epoch's first draw."""
    source = Source()
    loader = DataLoader(range(2), batch_size=1)
    windows(loader, batches=2, accumulate=1, epoch=1, start=ResumePosition(1, 0, 0, loader), source=source)
    assert source.restored == [0]


def test_stop_ends_the_epoch_after_the_window_under_way():
    """A stop asked for by a callback ends the epoch early."""
    found = windows(DataLoader(range(6), batch_size=1), batches=6, accumulate=2, source=Source(stop_after=2))
    assert found == [([0, 1], True)]


def test_empty_epoch_is_told():
    """An epoch without any batch is reported, so that training ends instead of turning for ever."""
    source = Source()
    assert (
        windows(prepare_dataloader(DataLoader(Numbers(0))), batches=None, accumulate=1, max_steps=2, source=source)
        == []
    )
    assert source.empty == 1


def test_iter_is_lazy():
    """``iter`` loads nothing and asks for no epoch: Lightning calls it ahead of the epoch's first hook."""
    asked = []
    args = SimpleNamespace(gradient_accumulation_steps=1, max_steps=-1, num_train_epochs=1)
    plan = build_plan(args, batches=2, examples=2, samples_per_update_step=1)
    iter(WindowLoader(DataLoader(range(2)), plan, Source(), lambda: asked.append(1) or 0))
    assert asked == []
