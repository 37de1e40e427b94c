#!/usr/bin/env bash
# max_steps counts the steps of all optimizers.
#
# Versions:  torch 2.13.0, lightning 2.6.6; Python 3.11 on a CPU
# Behaviour: under manual optimization `global_step` goes up with each step of each optimizer, so that a module with two
#            of them ends after half the batches of `max_steps`.
# Seen:      6, 3 and 2 batches with one, two and three optimizers and `max_steps=6`.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6
run <<'PYTHON'
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer

warnings.simplefilter("ignore")


class Module(LightningModule):
    def __init__(self, count):
        super().__init__()
        self.automatic_optimization = False
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(count))
        self.batches = 0

    def training_step(self, batch):
        self.batches += 1
        optimizers = self.optimizers()
        for layer, optimizer in zip(self.layers, optimizers if isinstance(optimizers, list) else [optimizers]):
            optimizer.zero_grad()
            self.manual_backward(layer(batch).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


seen = {}
for count in (1, 2, 3):
    module = Module(count)
    trainer = Trainer(max_steps=6, accelerator="cpu", logger=False, enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(20, 1)))
    seen[count] = module.batches
print("optimizers of a module: batches that max_steps=6 trained on:", seen)
assert seen == {1: 6, 2: 3, 3: 2}
PYTHON
