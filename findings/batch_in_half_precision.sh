#!/usr/bin/env bash
# With `precision="bf16-true"` labels and new numbers are rounded to bfloat16, too, not the model alone.
#
# Versions:  lightning 2.6.6, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: Lightning converts all floats of a batch, also those that a loss compares with, and makes bfloat16 the type of
#            new tensors inside of `training_step`: of `torch.arange`, of `torch.rand`, as for the times of a diffusion. What
#            is above 256 is even then, and what is drawn between 0.5 and 1 one of 128 numbers. No message says so, and a
#            metric compares with the rounded labels.
# Seen:      the label 10,001 is 9984 in training and validation, 300 positions are 279, and 10,000 random numbers 845;
#            10,001, 300 and more than 9,900 with `precision="32-true"` and `"bf16-mixed"`.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import logging

import lightning as L
import torch

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        inputs, labels = batch
        self.seen = labels.item(), torch.arange(300.0).unique().numel(), torch.rand(10000).unique().numel()
        return self.layer(inputs).mean()

    def validation_step(self, batch, index):
        self.log("label", batch[1].item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def seen(precision):
    module = Module()
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, precision=precision, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1, 1), torch.tensor([[10001.0]])))
    trainer.fit(module, loader, loader)
    return *module.seen, trainer.callback_metrics["label"].item()


results = {precision: seen(precision) for precision in ("32-true", "bf16-mixed", "bf16-true")}
print("label, numbers of 300 in a range, of 10,000 drawn, label in validation:", results)
for precision in ("32-true", "bf16-mixed"):
    label, positions, drawn, validated = results[precision]
    assert (label, positions, validated) == (10001, 300, 10001) and drawn > 9900
label, positions, drawn, validated = results["bf16-true"]
assert label == validated == 9984 and positions < 300 and drawn < 2000
PYTHON
