#!/usr/bin/env bash
# With `save_weights_only=True` a checkpoint of a run with `WeightAveraging` has the weights, not the average.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `WeightAveraging` and `EMAWeightAveraging` validate with the average, and put it into a checkpoint in a hook
#            that is not called for one of weights alone. Its name and the choice of the best are by the loss of the
#            average; what is loaded from it are the weights of the last step. No message says so.
# Seen:      a weight of 16 whose average is 15: the best value is 15, and so is the weight in a whole checkpoint; in one of
#            weights alone it is 16.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, index):
        return -self.weight

    def validation_step(self, batch, index):
        self.log("value", self.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def best(weights_only):
    saves = ModelCheckpoint(f"weights-{weights_only}", monitor="value", mode="max", save_weights_only=weights_only)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=2, num_sanity_val_steps=0, logger=False,
                        callbacks=[EMAWeightAveraging(decay=0.5), saves], enable_progress_bar=False,
                        enable_model_summary=False)
    loader = torch.utils.data.DataLoader(torch.ones(8, 1))
    trainer.fit(Module(), loader, torch.utils.data.DataLoader(torch.ones(1, 1)))
    return saves.best_model_score.item(), Module.load_from_checkpoint(saves.best_model_path).weight.item()


for weights_only in (False, True):
    value, weight = best(weights_only)
    print(f"save_weights_only={weights_only}: best value {value:.2f}, weight in the checkpoint {weight:.2f}")
    assert abs(value - 15) < 0.01
    assert weight == (16 if weights_only else value)
PYTHON
