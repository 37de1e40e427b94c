#!/usr/bin/env bash
# A run that is resumed with more patience keeps the patience of the one before, and stops at once.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: the state of `EarlyStopping` in a checkpoint has its `patience`, which replaces the one that the resumed
#            run was made with, without a message.
# Seen:      stopped with patience=2; resumed with patience=9 and ten epochs to go, the callback has a patience of 2
#            and the run ends with the first epoch.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def validation_step(self, batch):
        self.log("val_loss", 1.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(patience, epochs, ckpt_path=None):
    stopping = EarlyStopping("val_loss", patience=patience)
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, logger=False, enable_progress_bar=False,
                      enable_model_summary=False, callbacks=[stopping, ModelCheckpoint(".", save_last=True)])
    loader = torch.utils.data.DataLoader(torch.ones(2, 1))
    trainer.fit(Module(), loader, loader, ckpt_path=ckpt_path)
    print(f"asked for patience={patience}, has {stopping.patience}: ended after {trainer.current_epoch} epochs")
    return stopping.patience, trainer.current_epoch


assert fit(2, 10) == (2, 3)
assert fit(9, 13, "last.ckpt") == (2, 4)
PYTHON
