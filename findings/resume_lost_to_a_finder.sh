#!/usr/bin/env bash
# A run that is resumed with `LearningRateFinder` or `BatchSizeFinder` among its callbacks begins again at step 0.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: both search when the fit begins, after the weights of the checkpoint were loaded and before the rest is. They
#            put back what was before the search, and with that the checkpoint counts as read: optimizer, schedules, epoch
#            and step are not restored. The weights are, so that the loss looks right. No message says so.
# Seen:      two epochs of eight steps, resumed for a third: without a callback the run begins at step 16, with both moments
#            of Adam, and takes eight steps; with either it has the same weights, begins at step 0 with no moments, and
#            takes 24.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder, ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.lr, self.batch_size = 0.01, 8

    def train_dataloader(self):
        rows = torch.rand(64, 1, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.DataLoader(rows, batch_size=self.batch_size)

    def training_step(self, batch, index):
        return (self.layer(batch) - 2 * batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Start(Callback):
    def on_train_start(self, trainer, module):
        self.seen = trainer.global_step, trainer.current_epoch, len(trainer.optimizers[0].state)
        self.weight = module.layer.weight.item()


def fit(name, epochs, finder, resumed=None):
    module, start = Module(), Start()
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_progress_bar=False,
                        callbacks=[*finder(), start, ModelCheckpoint(f"{name}-{epochs}", save_last=True)],
                        enable_model_summary=False)
    trainer.fit(module, ckpt_path=resumed)
    return module.layer.weight.item(), start, trainer.global_step - start.seen[0]


finders = {
    "none": list,
    "LearningRateFinder": lambda: [LearningRateFinder(min_lr=1e-3, max_lr=1e-2, num_training_steps=20)],
    "BatchSizeFinder": lambda: [BatchSizeFinder(max_trials=1, steps_per_trial=1, init_val=8)],
}
for name, finder in finders.items():
    weight, _, _ = fit(name, 2, list)
    _, start, steps = fit(name, 3, finder, f"{name}-2/last.ckpt")
    print(f"{name}: begins at step, epoch, with states {start.seen}, and takes {steps} steps")
    assert start.weight == weight
    assert start.seen == ((16, 2, 2) if name == "none" else (0, 0, 0))
    assert (steps == 8) == (name == "none")
PYTHON
