#!/usr/bin/env bash
# Groups of an optimizer whose learning rate is a tensor share it: the schedule of the last group is that of all.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `lr=torch.tensor(...)`, which compiled and captured steps need, is put into each group as the same object, and
#            a schedule writes each group's value into it. A state dict that was taken has it, too, and changes with it.
# Seen:      of `[lambda step: 0.5**step, lambda step: 0.1**step]` both groups have 0.1 after a step; with a number 0.5 and
#            0.1. A state dict from before the step has 0.1, with a number 1.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.optim.lr_scheduler import LambdaLR


def rates(lr):
    optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)], lr=lr)
    schedule = LambdaLR(optimizer, [lambda step: 0.5**step, lambda step: 0.1**step])
    before = optimizer.state_dict()
    optimizer.step()
    schedule.step()
    return [[round(float(group["lr"]), 3) for group in groups] for groups in (optimizer.param_groups, before["param_groups"])]


number, tensor = rates(1.0), rates(torch.tensor(1.0))
print(f"rates after a step, and in a state dict from before it: with a number {number}, with a tensor {tensor}")
assert number == [[0.5, 0.1], [1.0, 1.0]]
assert tensor == [[0.1, 0.1], [0.1, 0.1]]
PYTHON
