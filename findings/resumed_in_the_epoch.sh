#!/usr/bin/env bash
# A run resumed in the middle of an epoch begins with the data of its beginning.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a checkpoint in the middle of an epoch restores the number of the batch. An ordinary `DataLoader` has no
#            position to restore and is not run ahead: the rest of the epoch takes as many batches as are left, from its
#            beginning.
# Seen:      after 3 of 10 batches, batch number 3 was the first of the data; the resumed epoch trained 0 to 6 and never
#            saw 7, 8 and 9.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append((index, int(batch.item())))
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(model, callbacks=None, ckpt_path=None):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, callbacks=callbacks,
                         enable_checkpointing=callbacks is not None, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(model, DataLoader(torch.arange(10.0)[:, None]), ckpt_path=ckpt_path)
    return model.seen


fit(Model(), [ModelCheckpoint("saved", filename="{step}", every_n_train_steps=3, save_top_k=-1)])
seen = fit(Model(), ckpt_path="saved/step=3.ckpt")
print("resumed after 3 of 10 batches; number of the batch, and what was in it:", seen)
assert seen == [(index + 3, index) for index in range(7)]
PYTHON
