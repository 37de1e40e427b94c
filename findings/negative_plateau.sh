#!/usr/bin/env bash
# A plateau schedule never reduces the rate while the loss is negative.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `ReduceLROnPlateau` asks by default whether a value is below `best * (1 - threshold)`. Below zero that is
#            above the best value, so that the same value again, and even a worse one, count as an improvement.
# Seen:      with the loss at 1.0 the rate falls at the twelfth evaluation, at -1.0 not in a hundred; a loss that gets
#            worse from -1 to -0.9 by 0.00005 at a time does not reduce it either.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau


def rate_after(losses, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = ReduceLROnPlateau(optimizer, **options)
    for loss in losses:
        schedule.step(loss)
    return optimizer.param_groups[0]["lr"]


constant = {loss: rate_after([loss] * 100) for loss in (1.0, -1.0)}
print("the rate after 100 evaluations of the same loss:", constant)
worse = rate_after([-1 + 0.00005 * i for i in range(2000)])
print("after 2000 evaluations, each a little worse than the one before, from -1.0 to -0.9:", worse)
absolute = rate_after([-1.0] * 100, threshold_mode="abs")
print("a loss of -1.0 with threshold_mode='abs':", absolute)
assert constant[1.0] < 1e-7 and absolute < 1e-7
assert constant[-1.0] == worse == 1.0
PYTHON
