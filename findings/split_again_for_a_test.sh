#!/usr/bin/env bash
# A data module that splits at random in `setup` tests on what it has trained on.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `setup` is called again for `fit`, `validate`, `test` and `predict`, each time on the same object. What it draws
#            there, such as a `random_split`, is drawn anew: most rows of the test were trained on. No message says so. A
#            generator with a seed, made in `setup`, splits alike each time.
# Seen:      of 20 test rows of 100 most were among the 80 for training, and none with
#            `generator=torch.Generator().manual_seed(0)`.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from torch.utils.data import DataLoader, random_split

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained, self.tested = set(), set()

    def training_step(self, batch, index):
        self.trained |= set(batch.flatten().tolist())
        return self.layer(batch).mean()

    def test_step(self, batch, index):
        self.tested |= set(batch.flatten().tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Rows(L.LightningDataModule):
    def __init__(self, seeded):
        super().__init__()
        self.seeded = seeded

    def setup(self, stage):
        generator = torch.Generator().manual_seed(0) if self.seeded else None
        self.train, self.test = random_split(torch.arange(100.0)[:, None], [80, 20], generator=generator)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=10)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=10)


def both(seeded):
    module, rows = Module(), Rows(seeded)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, datamodule=rows)
    trainer.test(module, datamodule=rows, verbose=False)
    assert (len(module.trained), len(module.tested)) == (80, 20)
    return len(module.trained & module.tested)


drawn, seeded = both(False), both(True)
print("test rows that were trained on:", drawn, "with a seed:", seeded)
assert drawn >= 8 and seeded == 0
PYTHON
