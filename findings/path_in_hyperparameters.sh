#!/usr/bin/env bash
# A checkpoint with a path in its hyperparameters is written, and cannot be read again.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `save_hyperparameters` keeps whatever the module was given. Without `weights_only` a fit that resumes logs
#            "`weights_only` was not set, defaulting to `False`", but leaves the choice to torch, which takes True: a
#            `pathlib.Path`, a date or an object of your own in the hyperparameters is refused. It is seen when the file
#            is needed, not when it is saved.
# Seen:      `fit(ckpt_path=...)` and `load_from_checkpoint` raised an UnpicklingError, after that message; with
#            `weights_only=False`, and with a string for the path, both worked.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging
import pathlib
import pickle

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self, data):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Kept(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


def fit(data, epochs, **given):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(data), DataLoader(torch.ones(2, 1)), **given)
    return trainer


def outcomes(file, data, **given):
    for load in (lambda: fit(data, 2, ckpt_path=file, **given), lambda: Model.load_from_checkpoint(file, **given)):
        try:
            load()
        except pickle.UnpicklingError:
            yield "UnpicklingError"
        else:
            yield "loaded"


said = []
logging.getLogger("lightning.pytorch").addHandler(Kept())
seen = {}
for data in ("data", pathlib.Path("data")):
    fit(data, 1).save_checkpoint("file.ckpt")
    seen[type(data).__name__] = list(outcomes("file.ckpt", data))
print("resumed, and loaded; by the type of the hyperparameter:", seen)
print("it said:", [message for message in said if "weights_only" in message][:1])
assert seen == {"str": ["loaded"] * 2, "PosixPath": ["UnpicklingError"] * 2}
assert any("defaulting to `False`" in message for message in said)
assert list(outcomes("file.ckpt", data, weights_only=False)) == ["loaded"] * 2
PYTHON
