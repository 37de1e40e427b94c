#!/usr/bin/env bash
# A second fit of the same Lightning Trainer does nothing.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: a `Trainer` keeps its count of epochs: after one `fit` to `max_epochs`, `fit` of another module returns at
#            once, without a warning. In a loop over folds only the first model is trained.
# Seen:      three models were trained on 5, 0 and 0 batches.
# Date:      2026-11-27
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
        self.steps = 0

    def training_step(self, batch):
        self.steps += 1
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                  enable_checkpointing=False)
folds = [Module() for _ in range(3)]
for module in folds:
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(5, 1)))
print("batches that the three models of one Trainer were trained on:", [module.steps for module in folds])
assert [module.steps for module in folds] == [5, 0, 0]
PYTHON
