#!/usr/bin/env bash
# A run with `max_time` that is resumed in the next job stops at once.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `Trainer(max_time=...)`, as one sets it to end before a job's limit, keeps the time that has passed in each
#            checkpoint, and adds it in a resumed run. So the second job, with the same line and all of its own time, ends
#            at once. What is logged is that the limit was reached.
# Seen:      13 steps in three seconds, and none in the job that goes on, which may train for three seconds, too.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        time.sleep(0.2)
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def steps(resumed=None):
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=-1, max_time={"seconds": 3}, logger=False,
                        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=1, save_last=True)],
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(4, 1)), ckpt_path=resumed)
    return trainer.global_step


first = steps()
both = steps("checkpoints/last.ckpt")
print("steps of the first job:", first, "of the second:", both - first)
assert first >= 5 and both - first <= 1
PYTHON
