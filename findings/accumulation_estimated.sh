#!/usr/bin/env bash
# The estimated number of steps takes no account of a schedule of accumulation.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `Trainer.estimated_stepping_batches`, from which the length of a schedule is taken, counts with the
#            accumulation of the first epoch, also if `GradientAccumulationScheduler` changes it later.
# Seen:      30 in advance for three epochs of ten batches, accumulated by 1, then by 4; the run had 16 steps, so that a
#            rate meant to end at 0 ends about half way.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        self.estimated = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=self.estimated)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


model = Model()
trainer = pl.Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False,
                     callbacks=[GradientAccumulationScheduler({0: 1, 1: 4})], enable_progress_bar=False,
                     enable_model_summary=False)
trainer.fit(model, DataLoader(torch.ones(10, 1)))
rate = trainer.optimizers[0].param_groups[0]["lr"]
print(f"estimated: {model.estimated} steps; done: {trainer.global_step}; the last rate: {rate:.2f}")
assert model.estimated == 30 and trainer.global_step == 16
assert rate > 0.4
PYTHON
