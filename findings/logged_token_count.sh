#!/usr/bin/env bash
# A count that is logged is rounded.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `LightningModule.log` makes a float32 of each number. Whole numbers above 2**24 are rounded, so that a
#            count of tokens in the billions moves by hundreds, and does not move at all if one adds less.
# Seen:      16777217 was logged as 16777216, 3000000100 as 3000000000.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        for count in (16777217, 3000000100):
            self.log(f"tokens_{count}", count)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), DataLoader(torch.ones(1, 1)))
logged = {name: int(value) for name, value in trainer.callback_metrics.items()}
print("logged:", logged)
assert logged == {"tokens_16777217": 16777216, "tokens_3000000100": 3000000000}
PYTHON
