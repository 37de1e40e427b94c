#!/usr/bin/env bash
# Lightning sets the modes of autograd anew, during a fit and for what comes after it.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: A fit switches off the anomaly detection that the script has switched on, unless `detect_anomaly=True` is
#            passed too, so that a NaN passes without the error; and it enables gradients, also in what comes after it.
# Seen:      In `training_step` detection is off within `set_detect_anomaly(True)`. With gradients disabled before
#            the fit, they are enabled after it.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer

warnings.simplefilter("ignore")


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        self.detects = torch.is_anomaly_enabled()
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(**keywords):
    module = Module()
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=False, **keywords)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2, 1)))
    return module


with torch.autograd.set_detect_anomaly(True):
    inside, asked = fitted().detects, fitted(detect_anomaly=True).detects
print(f"within set_detect_anomaly(True) a training step detects anomalies: {inside}; with detect_anomaly=True: {asked}")
assert not inside and asked

with torch.no_grad():
    fitted()
    enabled = torch.is_grad_enabled()
print(f"within no_grad(), after a fit, gradients are enabled: {enabled}")
assert enabled
PYTHON
