"""Windows: which batches make an update step, also at the end of an epoch and after a resume."""

import weakref
from types import SimpleNamespace

import lightning.pytorch as pl

from hf_compat import Trainer, TrainerCallback
from hf_compat.arguments.releases import Semantics
from hf_compat.data.windows import WindowLoader
from hf_compat.plan import build_plan
from tests.support.helpers import WIDTH, ListDataset, Stream
from tests.support.trainers import new_trainer


class Windows(pl.Callback):
    """Keeps the numbers of the samples of each window, and whether the window ends in an update step."""

    def __init__(self):
        self.seen, self.last = [], None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        numbers = [int(number) for one in batch.batches for number in one["features"][:, 0]]
        self.seen.append((numbers, batch.is_complete))
        self.last = weakref.ref(batch.batches[0]["features"])

    def on_train_epoch_end(self, trainer, pl_module):
        assert self.last is None or self.last() is None, "the last window is freed, although nothing reads on"


def trainer_of(folder, count, *, data=ListDataset, callbacks=(), kind=None, **fields):
    """Return a Trainer of batches with one number each, in order, and what keeps its windows."""
    rows = data([{"features": [float(number)] * WIDTH, "labels": 0} for number in range(count)])
    fields = {"per_device_train_batch_size": 1, "num_train_epochs": 1, "train_sampling_strategy": "sequential"} | fields
    windows = Windows()
    made = new_trainer(folder, kind, train_dataset=rows, callbacks=[windows, *callbacks], **fields)
    return made, windows


class Counting(Trainer):
    """Counts the batches that are drawn before random states are restored."""

    drawn, restored = 0, ()

    def get_batch_samples(self, *args):
        batches, items = super().get_batch_samples(*args)
        self.drawn += len(batches)
        return batches, items

    def _load_rng_state(self, checkpoint):
        self.restored += (self.drawn,)
        super()._load_rng_state(checkpoint)


class StopsEpoch(TrainerCallback):
    """Requests the end of an epoch after its first update step."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = True


class Reads(pl.Callback):
    """Reads Lightning's train loader at the end of the fit."""

    def on_train_end(self, trainer, pl_module):
        self.found = [batch["features"][0, 0].item() for batch in trainer.train_dataloader]


def test_windows_of_an_epoch(tmp_path):
    """Batches are grouped in order; the last window is short and still steps."""
    trainer, windows = trainer_of(tmp_path, 5, gradient_accumulation_steps=2)
    trainer.train()
    assert windows.seen == [([0, 1], True), ([2, 3], True), ([4], True)]


def test_iterable_cut_short_leaves_a_window_without_step(tmp_path):
    """Where no length is known, a window that an ending data set cut short makes no update step, as upstream."""
    trainer, windows = trainer_of(tmp_path, 3, data=Stream, gradient_accumulation_steps=2, max_steps=3)
    trainer.train()
    assert windows.seen == [([0, 1], True), ([2], False), ([0, 1], True), ([2], False), ([0, 1], True)]


def test_resume_goes_on_after_the_windows_done(tmp_path):
    """A resumed epoch leaves out the windows already done, and restores random states once, after its first draw."""
    fields = {"gradient_accumulation_steps": 2, "save_steps": 1}
    trainer_of(tmp_path, 6, **fields)[0].train()
    trainer, windows = trainer_of(tmp_path, 6, kind=Counting, **fields)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert windows.seen == [([2, 3], True), ([4, 5], True)]
    assert trainer.restored == (2,)


def test_resume_at_an_epoch_boundary_restores_before_drawing(tmp_path):
    """With nothing to leave out random states are restored before the epoch's first draw."""
    fields = {"num_train_epochs": 2, "save_steps": 2}
    trainer_of(tmp_path, 2, **fields)[0].train()
    trainer, windows = trainer_of(tmp_path, 2, kind=Counting, **fields)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert windows.seen == [([0], True), ([1], True)]
    assert trainer.restored == (0,)


def test_stop_ends_the_epoch_after_the_window_under_way(tmp_path):
    """A stop that a callback requests ends the epoch early."""
    trainer, windows = trainer_of(tmp_path, 6, gradient_accumulation_steps=2, callbacks=[StopsEpoch()])
    trainer.train()
    assert windows.seen == [([0, 1], True)]


def test_empty_epoch_ends_the_training(tmp_path, caplog):
    """A stream without a sample ends the training with a warning, instead of turning for ever."""
    trainer, windows = trainer_of(tmp_path, 0, data=Stream, max_steps=2)
    assert trainer.train().global_step == 0
    assert windows.seen == []
    assert "not a single sample" in caplog.text


def test_lightnings_loader_yields_batches(tmp_path):
    """Iterating over the loader that Lightning has, in a callback, yields batches and draws no window."""
    reads = Reads()
    trainer, windows = trainer_of(tmp_path, 3, callbacks=[reads])
    trainer.train()
    assert reads.found == [0.0, 1.0, 2.0]
    assert windows.seen == [([0], True), ([1], True), ([2], True)]


def test_iter_is_lazy():
    """``iter`` loads nothing: Lightning calls it ahead of the epoch's first hook."""

    class Loader:
        asked = False

        def __iter__(self):
            self.asked = True
            return iter([1])

    args = SimpleNamespace(gradient_accumulation_steps=1, max_steps=-1, num_train_epochs=1)
    loader, plan = Loader(), build_plan(args, batches=1, examples=1, samples_per_update_step=1)
    batches = iter(WindowLoader(loader, plan, None, Semantics()))
    assert not loader.asked
    assert list(batches) == [1]
