#!/usr/bin/env bash
# A name decides whether a weight decays.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: weights are left out of `weight_decay` if `bias` stands anywhere in their name, or a part of it ends in
#            `_norm`, whatever module they belong to.
# Seen:      no decay for the weights of Linear layers named `debiased_head` and `layer_norm`; 0.1 for `head`.
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
        self.head = nn.Linear(2, 2)
        self.debiased_head = nn.Linear(2, 2)
        self.layer_norm = nn.Linear(2, 2)  # a Linear: the name alone decides

    def forward(self, x):
        return {"loss": x.sum()}


args = TrainingArguments("out", weight_decay=0.1, use_cpu=True, report_to="none")
trainer = Trainer(Model(), args, train_dataset=[])
optimizer = trainer.create_optimizer()
decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
seen = {name: decays[id(parameter)] for name, parameter in trainer.model.named_parameters()}
print("weight decay:", seen)
assert seen["head.weight"] == 0.1
assert seen["debiased_head.weight"] == 0 and seen["layer_norm.weight"] == 0
PYTHON
