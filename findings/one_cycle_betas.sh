#!/usr/bin/env bash
# A one-cycle schedule replaces the first beta of Adam.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `OneCycleLR` cycles the momentum, too, unless told otherwise. Adam has none, so that it sets the first of
#            the `betas`, whatever you gave, at once and at each step.
# Seen:      `betas=(0.8, 0.99)` became 0.95 before the first step, 0.85 at the highest rate, and 0.95 again.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch

optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1, betas=(0.8, 0.99))
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
betas = [optimizer.param_groups[0]["betas"][0]]
for step in range(9):
    optimizer.step()
    schedule.step()
    betas.append(round(optimizer.param_groups[0]["betas"][0], 3))
print("asked for 0.8; the first beta in ten steps:", betas)
assert max(betas) == 0.95 and min(betas) >= 0.85 - 1e-9
PYTHON
