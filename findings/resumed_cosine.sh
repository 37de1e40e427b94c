#!/usr/bin/env bash
# A cosine schedule that is resumed with another length keeps the old one.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `T_max` is part of the state dict of `CosineAnnealingLR`, so that `load_state_dict` undoes a new value;
#            past the old end the learning rate rises again.
# Seen:      made with `T_max=8`, it is 4 after resuming, and the rate after eight steps is 1.0, not 0.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR


def made(length):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    return optimizer, CosineAnnealingLR(optimizer, T_max=length)


def step(optimizer, schedule, count):
    for _ in range(count):
        optimizer.step()
        schedule.step()


optimizer, schedule = made(4)
step(optimizer, schedule, 4)
longer, longer_schedule = made(8)
longer.load_state_dict(optimizer.state_dict())
longer_schedule.load_state_dict(schedule.state_dict())
step(longer, longer_schedule, 4)
print(f"made with T_max=8, resumed from a schedule with 4: T_max is {longer_schedule.T_max}, "
      f"and the rate after 8 steps {longer.param_groups[0]['lr']:.3f}")
assert longer_schedule.T_max == 4
assert longer.param_groups[0]["lr"] > 0.9
PYTHON
