#!/usr/bin/env bash
# A checkpoint's file name says 0.00 for a metric that nobody has logged.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: A name in `ModelCheckpoint(filename=...)` that is not logged, misspelt for one, is 0 in the name of the file,
#            without a message.
# Seen:      `step=1-val_f1=0.00.ckpt` where `val_acc` of 0.75 was logged, and no warning.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import logging
import os
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        self.log("val_acc", 0.75)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def files(**keywords):
    callback = ModelCheckpoint("files", **keywords)
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                      enable_model_summary=False, callbacks=[callback])
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2, 1)))
    return os.listdir("files")


said = []
logging.getLogger("lightning.pytorch").addFilter(lambda record: said.append(record.getMessage()) or True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    names = files(filename="{step}-{val_f1:.2f}")
said += [str(one.message) for one in caught]
print("files:", names, "- messages that name it:", [one for one in said if "val_f1" in one])
assert names == ["step=1-val_f1=0.00.ckpt"] and not any("val_f1" in one for one in said)
PYTHON
