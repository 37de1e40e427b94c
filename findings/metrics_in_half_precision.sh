#!/usr/bin/env bash
# A metric inside a model in bfloat16 stops adding up after 256 batches: a squared error of 1 is reported as 0.128.
#
# Versions:  lightning 2.6.6, torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a metric keeps float32 through `model.bfloat16()` and `model.half()`; `model.to(torch.bfloat16)` converts what it
#            has added up, and Lightning's `precision="bf16-true"` calls that. In bfloat16 256 + 1 is 256. Rows are counted in
#            whole numbers, so that the mean over an epoch falls with each batch after.
# Seen:      the squared error of 2,000 batches, each of which has 1: 0.128, and 1 with `precision="32-true"` and
#            `"bf16-mixed"`. A mean that was 1 in 300 batches and 0 in 1,700 is 1, not 0.15. `metric.set_dtype` in
#            `on_fit_start` mends it.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch
from torchmetrics import MeanMetric, MeanSquaredError

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self, mends):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.error, self.mean, self.mends = MeanSquaredError(), MeanMetric(), mends

    def on_fit_start(self):
        if self.mends:
            self.error.set_dtype(torch.float32)

    def training_step(self, batch, index):
        self.error.update(torch.tensor([2.0]), torch.tensor([1.0]))
        self.mean.update(1.0 if index < 300 else 0.0)
        self.log_dict({"error": self.error, "mean": self.mean}, on_step=False, on_epoch=True)
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def values(precision, mends=False):
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, precision=precision, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(mends), torch.utils.data.DataLoader(torch.ones(2000, 1)))
    return {name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()}


full, mixed, half = values("32-true"), values("bf16-mixed"), values("bf16-true")
mended = values("bf16-true", mends=True)
kept = torch.nn.ModuleList([MeanSquaredError()]).bfloat16()[0].sum_squared_error.dtype
converted = torch.nn.ModuleList([MeanSquaredError()]).to(torch.bfloat16)[0].sum_squared_error.dtype
print(f"float32: {full}; mixed: {mixed}; bfloat16: {half}, with set_dtype: {mended}")
print(f"after bfloat16(): {kept}; after to(torch.bfloat16): {converted}")
assert full == mixed == {"error": 1.0, "mean": 0.15}
assert half == {"error": 0.128, "mean": 1.0} and mended["error"] == 1.0
assert (kept, converted) == (torch.float32, torch.bfloat16)
PYTHON
