"""What Lightning callbacks read of loops and counters in a resumed run, compared with plain Lightning's."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.support.trainers import arguments

HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
STEPS, EPOCHS, PER_EPOCH = 12, 3, 4
ROWS = [{"x": torch.full((1,), float(index))} for index in range(PER_EPOCH)]
PLAIN = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Scaled(nn.Module):
    """A model with one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return {"loss": (x * self.weight).square().mean()}


class Plain(pl.LightningModule):
    """The same in Lightning, with manual optimization as ours has it."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model = Scaled()

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.model(batch["x"])["loss"])
        self.optimizers().step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def numbers_of(trainer):
    """Return all that a callback can read of where a fit is."""
    fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
    return {
        "global_step": trainer.global_step,
        "current_epoch": trainer.current_epoch,
        "max": (trainer.max_epochs, trainer.estimated_stepping_batches),
        "batches": (trainer.num_training_batches, trainer.is_last_batch, fit.batch_idx, fit.total_batch_idx),
        "batch": (vars(epoch.batch_progress.current).copy(), vars(epoch.batch_progress.total).copy()),
        "epoch": (vars(fit.epoch_progress.current).copy(), vars(fit.epoch_progress.total).copy()),
        "step": vars(epoch.manual_optimization.optim_step_progress.total).copy(),
        "step of epoch": vars(epoch.manual_optimization.optim_step_progress.current).copy(),
        "restarting": (fit.restarting, epoch.restarting, epoch.val_loop.restarting, fit.is_resuming),
        "restarted": (fit.restarted_mid_epoch, fit.restarted_on_epoch_end, fit.resumed_on_epoch_end),
        "axis": epoch._batches_that_stepped,
        "first": trainer._logger_connector._first_loop_iter,
        "val": (vars(epoch.val_loop.batch_progress.current).copy(), vars(epoch.val_loop.batch_progress.total).copy()),
        "scheduler": vars(epoch.scheduler_progress.total).copy(),
    }


class Reads(pl.Callback):
    """Notes the numbers in each hook, and the batch's index."""

    def __init__(self):
        self.read = []


def reading(name):
    def hook(self, trainer, pl_module, *given):
        index = given[-1] if "batch" in name else None
        self.read.append((name, index, numbers_of(trainer)))

    return hook


for hook_name in HOOKS:
    setattr(Reads, hook_name, reading(hook_name))


def plain(folder, start):
    """Return what is read in a run of Lightning resumed after ``start`` update steps; after 0 in an unbroken one."""
    reads, path = Reads(), None
    if start:
        within = start % PER_EPOCH
        saving = {"every_n_train_steps": start} if within else {"every_n_epochs": start // PER_EPOCH}
        keeping = ModelCheckpoint(folder, filename="kept", save_on_train_epoch_end=None if within else True, **saving)
        first = pl.Trainer(max_steps=start, callbacks=[keeping], **PLAIN)
        first.fit(Plain(), DataLoader(ROWS))
        path = f"{folder}/kept.ckpt"
    trainer = pl.Trainer(max_epochs=EPOCHS, callbacks=[reads], enable_checkpointing=False, **PLAIN)
    trainer.fit(Plain(), DataLoader(ROWS), ckpt_path=path, weights_only=False if path else None)
    return reads.read


def ours(folder, start):
    """Return the same of a run of ours."""
    reads = Reads()
    for steps, callbacks in ((start, []), (STEPS, [reads])):
        args = arguments(
            folder,
            num_train_epochs=EPOCHS,
            max_steps=steps or -1,
            per_device_train_batch_size=1,
            save_steps=max(start, 1),
            optim="sgd",
        )
        if steps:
            trainer = Trainer(Scaled(), args, train_dataset=ROWS, callbacks=callbacks)
            trainer.train(resume_from_checkpoint=bool(start) and steps == STEPS)
    return reads.read


@pytest.mark.parametrize("start", [0, 2, 6, 7, 8])
def test_all_numbers_are_those_of_lightning(start, tmp_path):
    """In every hook of a run, unbroken, resumed within an epoch, and at the end of one; so are the hooks themselves.

    But for the axis of loggers: the Trainer's logs count update steps from 1, and what callbacks log is beside them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers, and one that cannot be resumed
        expected = plain(tmp_path / "plain", start)
    for _, _, numbers in expected:
        numbers["axis"] += 1
    assert ours(str(tmp_path / "ours"), start) == expected


def test_an_epoch_begins_for_the_trainers_callbacks_only(tmp_path):
    """``on_epoch_begin`` comes in a resumed epoch too, as in transformers; ``on_train_epoch_start`` as in Lightning."""
    told = []

    class Begins(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            told.append("train")

        def on_epoch_begin(self, args, state, control, **kwargs):
            told.append(("epoch", state.global_step))

    for steps in (6, STEPS):
        args = TrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=1, save_steps=6, use_cpu=True, report_to="none"
        )
        reads = Reads()
        trainer = Trainer(Scaled(), args, train_dataset=ROWS, callbacks=[Begins(), reads])
        trainer.train(resume_from_checkpoint=steps == STEPS)
    assert told == ["train", ("epoch", 0), ("epoch", 4), "train", ("epoch", 6), ("epoch", 8)]
    starts = [numbers["global_step"] for name, _, numbers in reads.read if name == "on_train_epoch_start"]
    assert starts == [8]
