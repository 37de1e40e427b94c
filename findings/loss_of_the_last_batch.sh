#!/usr/bin/env bash
# The loss that is logged of a step with accumulated gradients is that of its last batch alone.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `self.log("loss", loss)` in `training_step` hands a logger what the last batch before the step had. With
#            `accumulate_grad_batches=8` seven batches in eight are in no curve, which is as noisy as with the small batch,
#            and no measure of the step. No message says so. With `on_epoch=True` the mean of an epoch has all.
# Seen:      batches with the losses 0 to 7, four a step: 3 and 7 are logged; their means are 1.5 and 5.5.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, index):
        loss = batch.mean() + 0 * self.weight
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


logger = CSVLogger("logs")
trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=4, log_every_n_steps=1,
                    logger=logger, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.arange(8.0)[:, None]))
with open(f"{logger.log_dir}/metrics.csv") as file:
    names, *rows = [line.rstrip("\n").split(",") for line in file]
steps = [float(row[names.index("loss_step")]) for row in rows if row[names.index("loss_step")]]
epoch = trainer.callback_metrics["loss_epoch"].item()
print("logged of the two steps:", steps, "of the epoch:", epoch)
assert steps == [3.0, 7.0] and epoch == 3.5
PYTHON
