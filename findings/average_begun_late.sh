#!/usr/bin/env bash
# An average that `EMAWeightAveraging` begins late is evaluated and saved before as the model before its training.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: with `update_starting_at_step=n` the average is a copy of the first weights until step n, and all validations and
#            checkpoints are of it, not of the weights that are trained. `update_starting_at_epoch=n` alone begins nothing
#            late: each step is averaged from the first on, and from that epoch on the ends of epochs once more. No message
#            says so.
# Seen:      a weight that grows by one a step, four an epoch: with `update_starting_at_step=12` three validations and
#            checkpoints have 0; with `update_starting_at_epoch=3` the first has 3.125, an average of all four steps.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import glob
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.validated = []

    def training_step(self, batch, index):
        return -self.weight

    def validation_step(self, batch, index):
        self.validated.append(self.weight.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def run(name, **begins):
    module = Module()
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=5, num_sanity_val_steps=0, logger=False,
                        callbacks=[EMAWeightAveraging(decay=0.5, **begins), ModelCheckpoint(name, save_top_k=-1)],
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(4, 1)), torch.utils.data.DataLoader(torch.ones(1, 1)))
    saved = [torch.load(path, weights_only=True)["state_dict"]["weight"].item() for path in sorted(glob.glob(f"{name}/*"))]
    print(name, begins, "validated:", module.validated, "saved:", saved)
    return module.validated, saved


validated, saved = run("step", update_starting_at_step=12)
assert validated[:3] == saved[:3] == [0, 0, 0] and validated[3] > 12
validated, saved = run("epoch", update_starting_at_epoch=3)
assert validated[0] == saved[0] == 3.125
PYTHON
