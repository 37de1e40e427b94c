#!/usr/bin/env bash
# The last update of an epoch has a part of its gradient, if accumulation does not divide the batches.
#
# Versions:  lightning 2.6.6, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: with accumulation over n batches each loss is divided by n, also those of the last batches of an epoch, of which
#            there may be fewer. The update is made all the same, of a sum that is a mean no more. So it is with
#            `accumulate_grad_batches`, and inside `accelerator.accumulate`.
# Seen:      ten batches with a gradient of 1, accumulated by 4: gradients of 1, 1 and 0.5 in both; 1, 1 and 0.25 of nine.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from accelerate import Accelerator

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.gradients = []

    def training_step(self, batch, index):
        return (self.weight * batch).mean()

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.weight.grad.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def with_lightning(batches):
    module = Module()
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=4, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(batches)))
    return module.gradients


def with_accelerate(batches):
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    layer = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(batches, 1))
    layer, optimizer, loader = accelerator.prepare(layer, optimizer, loader)
    gradients = []
    for batch in loader:
        with accelerator.accumulate(layer):
            accelerator.backward(layer(batch).mean())
            if accelerator.sync_gradients:
                gradients.append(layer.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    return gradients


for train in (with_lightning, with_accelerate):
    seen = {batches: train(batches) for batches in (8, 9, 10)}
    print(train.__name__, seen)
    assert seen == {8: [1, 1], 9: [1, 1, 0.25], 10: [1, 1, 0.5]}
PYTHON
