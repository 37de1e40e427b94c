#!/usr/bin/env bash
# `last.ckpt` of a `ModelCheckpoint` with a monitor is the best checkpoint, not the last.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `save_last=True` writes `last.ckpt` where a checkpoint is written anyway: with a `monitor` only after an epoch
#            that is among the best `save_top_k`. A run that is resumed from it, or by `ckpt_path="last"`, trains all epochs
#            since the best one again; a patience that had run out begins at the best. No message says so.
# Seen:      losses of 1, 0.1, 0.5 and 0.6: `last.ckpt` is of the second epoch; with `save_top_k=-1` it is of the fourth.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
LOSSES = [1.0, 0.1, 0.5, 0.6]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch).mean()

    def validation_step(self, batch, index):
        self.log("val_loss", LOSSES[self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def epoch_of_the_last(save_top_k):
    saves = ModelCheckpoint(f"checkpoints{save_top_k}", monitor="val_loss", save_last=True, save_top_k=save_top_k)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=4, num_sanity_val_steps=0, logger=False,
                        callbacks=[saves], enable_progress_bar=False, enable_model_summary=False)
    loader = torch.utils.data.DataLoader(torch.ones(1, 1))
    trainer.fit(Module(), loader, loader)
    return torch.load(saves.last_model_path, weights_only=True)["epoch"] + 1


best, every = epoch_of_the_last(1), epoch_of_the_last(-1)
print("of four epochs last.ckpt is of epoch", best, "and with save_top_k=-1 of epoch", every)
assert best == 2 and every == 4
PYTHON
