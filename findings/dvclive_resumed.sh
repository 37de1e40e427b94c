#!/usr/bin/env bash
# A resumed run deletes the curves that dvclive has of the run before.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, dvclive 3.49.1; Python 3.11 on a CPU
# Behaviour: with `report_to="dvclive"` each process begins the folder dvclive anew: the rows of the steps before the
#            checkpoint are deleted. Steps are counted by calls of `log`, from 0, also in the resumed run.
# Seen:      3 rows of the loss at 0, 1, 2 for update steps 2, 4, 6; after a resume from step 4 one row, at 0, for 6.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 dvclive==3.49.1
cat >train.py <<'PYTHON'
import sys

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
args = TrainingArguments("out", max_steps=6, logging_steps=2, save_steps=4, per_device_train_batch_size=2, use_cpu=True,
                         report_to="dvclive", disable_tqdm=True)
Trainer(Model(), args, train_dataset=rows).train(resume_from_checkpoint=sys.argv[1] if sys.argv[1:] else None)
PYTHON
venv/bin/python train.py
cp dvclive/plots/metrics/loss.tsv first.tsv
venv/bin/python train.py out/checkpoint-4
run <<'PYTHON'
from pathlib import Path


def steps(path):
    return [line.split("\t")[0] for line in Path(path).read_text().splitlines()[1:]]


first, resumed = steps("first.tsv"), steps("dvclive/plots/metrics/loss.tsv")
print(f"steps of the loss after the first run: {first}; after the resumed run: {resumed}")
assert first == ["0", "1", "2"], first
assert resumed == ["0"], resumed
PYTHON
