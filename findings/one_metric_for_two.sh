#!/usr/bin/env bash
# A metric that is updated in training and in validation reports a mixture of both in validation, and nothing in training.
#
# Versions:  lightning 2.6.6, torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the validation of an epoch runs before its training ends. A metric that both steps update and log has then the
#            training's batches, and is computed with them for the validation; after it is reset, so that the training has
#            none. No message says so for the validation. Each of the two needs an object of its own.
# Seen:      a mean of 1 in training and 0 in validation: reported are NaN and 0.5; with two objects 1 and 0.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from torchmetrics import MeanMetric

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self, two):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.mean = MeanMetric()
        self.validation_mean = MeanMetric() if two else self.mean

    def training_step(self, batch, index):
        self.mean.update(1.0)
        self.log("train", self.mean, on_step=False, on_epoch=True)
        return self.layer(batch).mean()

    def validation_step(self, batch, index):
        self.validation_mean.update(0.0)
        self.log("val", self.validation_mean)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def reported(two):
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=2, num_sanity_val_steps=0, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    loader = torch.utils.data.DataLoader(torch.ones(4, 1))
    trainer.fit(Module(two), loader, loader)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


one, two = reported(False), reported(True)
print("one object:", one, "two objects:", two)
assert two == {"val": 0.0, "train": 1.0}
assert one["val"] == 0.5 and one["train"] != one["train"]
PYTHON
