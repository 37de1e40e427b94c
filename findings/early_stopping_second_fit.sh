#!/usr/bin/env bash
# EarlyStopping goes by the best value of an earlier fit.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: the callback keeps its best value and its count: used again in a new `Trainer` it compares a new model with
#            the old one, and stops it although each of its epochs is better.
# Seen:      6 epochs, then 2 with the same object and 6 with a new one.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

warnings.simplefilter("ignore")


class Module(LightningModule):
    def __init__(self, losses):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.losses = losses

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.losses[min(self.current_epoch, len(self.losses) - 1)])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def epochs(stopping, losses):
    trainer = Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_progress_bar=False, num_sanity_val_steps=0,
                      enable_model_summary=False, enable_checkpointing=False, callbacks=[stopping])
    data = torch.utils.data.DataLoader(torch.ones(2, 1))
    trainer.fit(Module(losses), data, data)
    return trainer.current_epoch


stopping = EarlyStopping("loss", patience=2)
first = epochs(stopping, [1.0, 0.5, 0.4, 0.3, 0.2, 0.1])
second = epochs(stopping, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0])
fresh = epochs(EarlyStopping("loss", patience=2), [9.0, 8.0, 7.0, 6.0, 5.0, 4.0])
print(f"epochs: {first}, then with the same EarlyStopping in a new Trainer {second}, with a new one {fresh}")
assert (first, second, fresh) == (6, 2, 6)
PYTHON
