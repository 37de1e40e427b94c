#!/usr/bin/env bash
# The average of `StochasticWeightAveraging` is in no checkpoint, and is lost if a run is stopped early.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the average is copied into the module at the end of the last epoch of `max_epochs`. Checkpoints have the weights
#            before, the best and the last too, so that `test(ckpt_path="best")` tests no average. `EarlyStopping`,
#            `max_time` or a signal end a run in another epoch: the module has no average then. No message says so.
# Seen:      after six epochs the module has the average, the last checkpoint has not; after a stop in the fourth, in which
#            the callback has averaged three times, the module has the weights of the last step.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, index):
        return -self.weight

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Stop(Callback):
    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = trainer.current_epoch == 3


def run(name, callbacks):
    module = Module()
    averaging = StochasticWeightAveraging(swa_lrs=1.0, swa_epoch_start=2, annealing_epochs=1)
    saves = ModelCheckpoint(name, save_last=True)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=6, logger=False,
                        callbacks=[averaging, saves, *callbacks], enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2, 1)))
    saved = torch.load(saves.last_model_path, weights_only=False)["state_dict"]["weight"].item()
    seen = module.weight.item(), averaging._average_model.weight.item(), saved, int(averaging.n_averaged)
    print(f"{name}: module {seen[0]:.2f}, average {seen[1]:.2f} of {seen[3]}, last checkpoint {seen[2]:.2f}")
    return seen


module, average, saved, _ = run("whole", [])
assert module == average != saved
module, average, saved, _ = run("stopped", [Stop()])
assert module == saved != average
PYTHON
