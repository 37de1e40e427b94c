#!/usr/bin/env bash
# A hyperparameter on the command line of a run that is resumed is that of the checkpoint.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6, jsonargparse 4.53.0, docstring-parser 0.18.0, typeshed-client 2.15.0;
#            Python 3.11 on a CPU
# Behaviour: with `--ckpt_path` a `LightningCLI` reads the hyperparameters that the checkpoint has, and sets them last: over
#            those of the configuration, and over what stands on the command line. No message says so.
# Seen:      `fit --ckpt_path ... --model.dropout 0.5` trains with the 0.1 of the checkpoint; without `--ckpt_path` with 0.5.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6 jsonargparse==4.53.0 docstring-parser==0.18.0 typeshed-client==2.15.0
run <<'PYTHON'
import logging

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(L.LightningModule):
    def __init__(self, dropout: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.dropout(self.layer(batch), self.hparams.dropout).mean()

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


defaults = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
            "enable_model_summary": False, "default_root_dir": "run"}


def dropout(*line):
    cli = LightningCLI(Model, save_config_callback=None, trainer_defaults=defaults, args=["fit", *line])
    return cli.model.hparams.dropout


first = dropout("--trainer.max_epochs=1")
anew = dropout("--trainer.max_epochs=1", "--model.dropout=0.5", "--trainer.enable_checkpointing=False")
resumed = dropout("--trainer.max_epochs=2", "--model.dropout=0.5", "--ckpt_path=run/checkpoints/epoch=0-step=4.ckpt")
print("dropout of the first run:", first, "of a new one with 0.5:", anew, "of a resumed one with 0.5:", resumed)
assert (first, anew, resumed) == (0.1, 0.5, 0.1)
PYTHON
