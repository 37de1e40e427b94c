#!/usr/bin/env bash
# Two trainings with one `run_name` are one run in trackio, on one axis.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, trackio 0.43.0; Python 3.11 on a CPU
# Behaviour: with `report_to="trackio"` a process goes on in the run of the same `run_name`, whether it resumes a checkpoint
#            or trains anew. The axis counts calls of `log`, over both; `train_loss` is not kept.
# Seen:      one run, whose losses of the update steps 2, 4, 2, 4 are at 0, 1, 3, 4.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 trackio==0.43.0
export TRACKIO_DIR=$folder/trackio
cat >train.py <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(8)]
args = TrainingArguments("out", max_steps=4, logging_steps=2, save_strategy="no", per_device_train_batch_size=2,
                         use_cpu=True, report_to="trackio", run_name="mine", disable_tqdm=True)
Trainer(Model(), args, train_dataset=rows).train()
PYTHON
venv/bin/python train.py
venv/bin/python train.py
run <<'PYTHON'
import json
import os
import sqlite3
from pathlib import Path

(path,) = Path(os.environ["TRACKIO_DIR"]).glob("*.db")
rows = sqlite3.connect(path).execute("select run_id, step, metrics from metrics order by id").fetchall()
runs = {run for run, _, _ in rows}
logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
losses = [(step, metrics["train/global_step"]) for step, metrics in logged if "train/loss" in metrics]
print(f"{len(runs)} run; step of trackio and update step of each loss: {losses}")
assert len(runs) == 1, runs
assert losses == [(0, 2), (1, 4), (3, 2), (4, 4)], losses
assert not any("train_loss" in name for _, metrics in logged for name in metrics)
PYTHON
