#!/usr/bin/env bash
# A checkpoint that is saved between two validations is ranked by the value of the one before.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `ModelCheckpoint(monitor="val_loss", every_n_train_steps=n)` takes what was logged last. Where n does not fall
#            together with the validations, that was measured with other weights: the file's name has it, and the best
#            checkpoint is chosen by it. It may be one that was never validated, and much worse. No message says so.
# Seen:      validated every four steps and saved every three, with losses of 0.5, 0 and 0.5 at steps 4, 8 and 12, and 1 at
#            all others: the best checkpoint is that of step 9, with `val_loss=0.00` in its name, and a loss of 1.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    """A model whose one weight is its loss: 0.5, 0 and 0.5 after steps 4, 8 and 12, and 1 after all others."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, index):
        loss_after = {4: 0.5, 8: 0.0, 12: 0.5}.get(self.global_step + 1, 1.0)
        return self.weight * (self.weight.item() - loss_after)

    def validation_step(self, batch, index):
        self.log("val_loss", self.weight.detach())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


saves = ModelCheckpoint("checkpoints", monitor="val_loss", every_n_train_steps=3, filename="{step}-{val_loss:.2f}")
trainer = L.Trainer(accelerator="cpu", devices=1, max_steps=12, val_check_interval=4, num_sanity_val_steps=0,
                    logger=False, callbacks=[saves], enable_progress_bar=False, enable_model_summary=False)
loader = torch.utils.data.DataLoader(torch.ones(12, 1))
trainer.fit(Module(), loader, torch.utils.data.DataLoader(torch.ones(1, 1)))
best = os.path.basename(saves.best_model_path)
loss = torch.load(saves.best_model_path, weights_only=True)["state_dict"]["weight"].item()
print("best checkpoint:", best, "loss of its weights:", loss)
assert best == "step=9-val_loss=0.00.ckpt" and loss == 1
PYTHON
