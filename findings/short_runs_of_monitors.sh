#!/usr/bin/env bash
# Monitors of Lightning log nothing in a short run.
#
# Versions:  torch 2.13.0, lightning 2.6.6, psutil 7.2.2; Python 3.11 on a CPU
# Behaviour: `LearningRateMonitor`, `DeviceStatsMonitor` and `ThroughputMonitor` log where `log_every_n_steps` says,
#            which is 50 by default: a run with fewer steps has no row of them.
# Seen:      0 rows of each in a run of five steps; 5, 10 and 5 with `log_every_n_steps=1`.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 lightning==2.6.6 psutil==7.2.2
run <<'PYTHON'
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
from lightning.pytorch.loggers import Logger

warnings.simplefilter("ignore")


class Rows(Logger):
    def __init__(self):
        super().__init__()
        self.rows = []

    name = version = "rows"

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, sorted(metrics)))


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}]


def rows(monitor, prefix, **keywords):
    logger = Rows()
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=logger, callbacks=[monitor], enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=False, **keywords)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(5, 1)))
    return sum(any(name.startswith(prefix) for name in names) for step, names in logger.rows)


for kind, prefix in (
    (lambda: LearningRateMonitor("step"), "lr-"),
    (lambda: DeviceStatsMonitor(cpu_stats=True), "DeviceStatsMonitor"),
    (lambda: ThroughputMonitor(batch_size_fn=len), "train"),
):
    default, each = rows(kind(), prefix), rows(kind(), prefix, log_every_n_steps=1)
    print(f"five steps with {type(kind()).__name__}: {default} rows by default, {each} with log_every_n_steps=1")
    assert default == 0 < each
PYTHON
