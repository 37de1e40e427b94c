"""Loaders in a run: streams too short for an update step, uneven splits, workers that stay, epochs of a dataset."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import hf_compat
from hf_compat import Trainer
from hf_compat.data.rank_batches import BatchShard, check_even
from hf_compat.errors import DataError
from tests.support.helpers import ListDataset
from tests.support.trainers import arguments, new_trainer

transformers = pytest.importorskip("transformers")

SHORT = {"remove_unused_columns": False, "max_steps": 3, "save_strategy": "no", "per_device_train_batch_size": 2}


class Reads(nn.Module):
    """Notes what it is given; its loss is the mean."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, x, labels=None):
        self.seen.append(x.tolist())
        return {"loss": (x + self.weight).mean()}


class Numbers(IterableDataset):
    """The numbers up to the next count at each pass, the last one at all further; with workers each yields its own."""

    def __init__(self, *counts):
        self.counts = list(counts)

    def __iter__(self):
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from ({"x": float(number)} for number in range(first, count, step))


def reading_trainer(folder, train, library=hf_compat, **fields):
    """Return a Trainer of three update steps that keeps in its model what it reads of ``train``."""
    return new_trainer(folder, library=library, model=Reads(), train_dataset=train, **SHORT | fields)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_too_short_for_an_update_step(tmp_path, workers):
    """Two batches a pass are never the four of an update step: training stops after a pass and says so."""
    fields = {"gradient_accumulation_steps": 4, "dataloader_num_workers": workers}
    trainer = reading_trainer(tmp_path, Numbers(4), **fields)
    with pytest.raises(DataError, match=r"`gradient_accumulation_steps=4`: .* yielded 2 batches in a pass, too few"):
        trainer.train()
    assert (len(trainer.model.seen), trainer.state.global_step) == (2, 0)


def test_a_stream_that_becomes_too_short(tmp_path):
    """So it is with a later pass, after update steps have been made."""
    trainer = reading_trainer(tmp_path, Numbers(8, 2), gradient_accumulation_steps=2)
    with pytest.raises(DataError, match="yielded 1 batches in a pass"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("counts", [(0,), (4, 0)], ids=["at once", "in its second pass"])
def test_a_stream_that_yields_nothing_ends_training(tmp_path, caplog, counts):
    """An empty pass ends training with a warning, whichever pass it is."""
    trainer = reading_trainer(tmp_path, Numbers(*counts), gradient_accumulation_steps=2)
    assert trainer.train().global_step == len(counts) - 1
    assert "not a single sample" in caplog.text


def test_a_short_pass_that_a_callback_ended(tmp_path):
    """A pass that a callback ends before its update step is no fault of the data."""

    class Ends(hf_compat.TrainerCallback):
        ends = 2

        def on_substep_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = self.ends > 0
            self.ends -= 1

    trainer = reading_trainer(tmp_path, Numbers(16), gradient_accumulation_steps=2)
    trainer.add_callback(Ends())
    assert trainer.train().global_step == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_resumed_in_the_pass_it_was_in(tmp_path, workers):
    """Of 5 batches a pass, a run resumed after 7 goes on with the third of the second pass, with workers too."""
    fields = {"save_strategy": "steps", "save_steps": 7, "max_steps": 10, "dataloader_num_workers": workers}
    whole = reading_trainer(tmp_path, Numbers(10), **fields)
    whole.train()
    rest = reading_trainer(tmp_path, Numbers(10), **fields)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert rest.model.seen == whole.model.seen[7:]
    assert len(rest.model.seen) == 3


# ---- splitting ----


@pytest.mark.parametrize(
    ("samples", "is_even"),
    [
        pytest.param(8, True, id="whole batches"),
        pytest.param(11, True, id="a last batch of which each rank gets a part"),
        pytest.param(10, False, id="a last batch that rank 0 alone gets"),
        pytest.param(9, False, id="a single sample"),
    ],
)
def test_a_batch_that_cannot_be_split(samples, is_even):
    """Batches of 4 split over 2 ranks: of a last one with at most 2 samples rank 1 gets none, and rank 0 would wait."""
    batches = torch.utils.data.BatchSampler(range(samples), 4, drop_last=False)
    shards = [
        BatchShard(batches, num_processes=2, process_index=rank, split_batches=True, even_batches=False)
        for rank in range(2)
    ]
    assert (len({len(list(shard)) for shard in shards}) == 1) is is_even
    loader = SimpleNamespace(batch_sampler=shards[0])
    if is_even:
        check_even(loader, awaited="gradients")
        return
    with pytest.raises(DataError, match=r"even_batches=False, 3 batches split over them leave some of the 2 processes"):
        check_even(loader, awaited="gradients")


# ---- workers that stay ----


def same_rows(value):
    return ListDataset([{"x": value, "labels": 0}] * 4)


@pytest.mark.parametrize("given", [True, False], ids=["given to evaluate", "the Trainer's own"])
def test_each_evaluation_set_has_its_own_workers(tmp_path, given):
    """The mean of each set is its own, also the second time, of datasets given and of one that replaces another."""
    sets = {name: same_rows(value) for name, value in (("a", 1.0), ("b", 3.0))}
    fields = {"dataloader_persistent_workers": True, "dataloader_num_workers": 1, "per_device_eval_batch_size": 2}
    args = arguments(tmp_path, remove_unused_columns=False, **fields)
    trainer = Trainer(Reads(), args, eval_dataset=sets)
    for _ in range(2):
        metrics = trainer.evaluate(sets if given else None)
        assert (metrics["eval_a_loss"], metrics["eval_b_loss"]) == (1.0, 3.0)
    assert len(trainer._eval_dataloaders) == 2  # whose workers stay
    trainer.eval_dataset = same_rows(5.0)
    assert trainer.evaluate()["eval_loss"] == 5.0
    trainer.eval_dataset = same_rows(7.0)
    assert trainer.evaluate()["eval_loss"] == 7.0


def test_transformers_evaluates_the_first_set_again(tmp_path):
    """With workers that persist, each set that is given to its ``evaluate`` has the numbers of the first."""
    fields = {"dataloader_persistent_workers": True, "dataloader_num_workers": 1, "per_device_eval_batch_size": 2}
    args = arguments(tmp_path, transformers, remove_unused_columns=False, **fields)
    trainer = transformers.Trainer(Reads(), args, eval_dataset=same_rows(1.0))
    assert [trainer.evaluate(same_rows(value))["eval_loss"] for value in (1.0, 3.0)] == [1.0, 1.0]


# ---- epochs of a data set ----


class Told(Dataset):
    """Sixteen numbers, of another hundred in each epoch that it is told."""

    def __init__(self):
        self.epoch, self.told = 0, []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": float(100 * self.epoch + index)}


def told(folder, library, resume=None, **fields):
    """Return the epochs that the data set is told, and the hundreds that are read, of a run of 3 epochs of 4 steps."""
    data = Told()
    settings = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 4, "save_steps": 3}
    trainer = reading_trainer(folder, data, library, **{**settings, "save_strategy": "steps", **fields})
    trainer.train(resume_from_checkpoint=resume and str(folder / f"checkpoint-{resume}"))
    return data.told, [int(batch[0] // 100) for batch in trainer.model.seen]


OLD = transformers.__version__.startswith("4.")


@pytest.mark.parametrize("resume", [None, 6])
@pytest.mark.filterwarnings("ignore:`train_dataset` has a `set_epoch`")
def test_epochs_are_told_as_in_transformers(tmp_path, resume):
    """As often, in a resumed run too; there transformers 5 reads the rest of the epoch as if it were the first."""
    for library in (transformers, hf_compat):
        told(tmp_path / library.__name__, library)
    ours = told(tmp_path / "hf_compat", hf_compat, resume)
    assert ours == told(tmp_path / "transformers", transformers, resume)
    if resume:
        assert ours == (([1] if OLD else []) + [2, 2], [1 if OLD else 0] * 2 + [2] * 4)


def test_epochs_are_told_when_corrected(tmp_path):
    """A warning says where they are not; with `semantics='corrected'` the rest of an epoch is read as its beginning."""
    told(tmp_path, hf_compat)
    if not OLD:
        with pytest.warns(hf_compat.HFCompatWarning, match="does not call in an epoch that is resumed in the middle"):
            told(tmp_path, hf_compat, 6)
    _, read = told(tmp_path, hf_compat, 6, semantics="corrected")
    assert read == [1] * 2 + [2] * 4
