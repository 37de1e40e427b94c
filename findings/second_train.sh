#!/usr/bin/env bash
# A second train() goes on with the optimizer of the first.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: `train` of the same Trainer begins its schedule and its count of steps again, but keeps the optimizer, with
#            its averages and bias correction.
# Seen:      two runs of 6 steps with the same rates; the optimizer has made 6, then 12.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(12)]
args = TrainingArguments("out", max_steps=6, logging_steps=1, per_device_train_batch_size=2, use_cpu=True,
                         report_to="none", disable_tqdm=True, save_strategy="no")
trainer = Trainer(Model(), args, train_dataset=rows)
runs = []
for _ in range(2):
    trainer.train()
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    steps = {int(state["step"]) for state in trainer.optimizer.state.values()}
    runs.append((rates, trainer.state.global_step, steps))
for number, (rates, counted, steps) in enumerate(runs, 1):
    print(f"train() number {number}: {counted} steps from a rate of {rates[0]:.2g}; the optimizer has made {steps}")
assert runs[0][:2] == runs[1][:2]  # schedule and count begin again
assert (runs[0][2], runs[1][2]) == ({6}, {12})
PYTHON
