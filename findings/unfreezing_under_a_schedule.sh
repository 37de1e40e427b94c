#!/usr/bin/env bash
# A callback that unfreezes layers ends the run in the middle, if the schedule is a `LambdaLR`, as all of transformers are.
#
# Versions:  lightning 2.6.6, transformers 5.24.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `BaseFinetuning` adds a group to the optimizer at its epoch. `LambdaLR` has a function for each group that there
#            was when it was made, and raises at its next step; `OneCycleLR` lacks its keys in the new group. What computes a
#            rate from the one before, such as `CosineAnnealingLR`, goes on with all groups. Nothing is said before, so that
#            the error comes after the epochs in which the head was trained.
# Seen:      unfrozen after the first epoch of four steps: `LambdaLR`, transformers' linear schedule and `OneCycleLR` end the
#            run there, in the second epoch; `CosineAnnealingLR` and `LinearLR` train on.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from torch.optim import lr_scheduler
from transformers import get_linear_schedule_with_warmup

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Unfreeze(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.backbone)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone, optimizer)


class Module(L.LightningModule):
    def __init__(self, schedule):
        super().__init__()
        self.backbone, self.head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.schedule = schedule

    def training_step(self, batch, index):
        return self.head(self.backbone(batch)).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([each for each in self.parameters() if each.requires_grad], lr=0.1)
        return [optimizer], [{"scheduler": self.schedule(optimizer), "interval": "step"}]


SCHEDULES = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 16),
    "linear": lambda optimizer: get_linear_schedule_with_warmup(optimizer, 0, 16),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 16),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 16),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 16),
}
ends = {}
for name, schedule in SCHEDULES.items():
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=4, callbacks=[Unfreeze()], logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    try:
        trainer.fit(Module(schedule), torch.utils.data.DataLoader(torch.ones(4, 1)))
        ends[name] = "whole", trainer.global_step
    except (KeyError, ValueError) as error:
        ends[name] = type(error).__name__, trainer.global_step
print("how each run ended, and after how many steps:", ends)
assert ends["LambdaLR"] == ends["linear"] == ("ValueError", 5) and ends["OneCycleLR"] == ("KeyError", 5)
assert ends["CosineAnnealingLR"] == ends["LinearLR"] == ("whole", 16)
PYTHON
