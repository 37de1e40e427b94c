#!/usr/bin/env bash
# An average of weights in bfloat16 does not move, while the weights do: each of its steps is rounded away.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `AveragedModel` copies the model, its dtype too. Of a step of 0.001 towards the weights nothing is left in the
#            eight bits of bfloat16 unless they are far away, and of the n-th part of a plain mean neither, once n is some
#            hundred. No message says so.
# Seen:      weights went from 1 to 2, and stayed there for 3000 updates. Averages with a decay of 0.999 are 1.95 in float32
#            and 1 in bfloat16; the mean of 500 times 1 and 500 times 2 is 1.5 in float32 and 1 in bfloat16.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged(dtype, ones, twos, **how):
    model = torch.nn.Linear(1, 1, bias=False).to(dtype)
    average = AveragedModel(model, **how)
    for value, updates in ((1.0, ones), (2.0, twos)):
        model.weight.data.fill_(value)
        for _ in range(updates):
            average.update_parameters(model)
    return average.module.weight.item()


for dtype in (torch.float32, torch.bfloat16):
    moving = averaged(dtype, 1, 3000, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    mean = averaged(dtype, 500, 500)
    print(f"{dtype}: moving average {moving:.3f}, mean {mean:.3f}")
    if dtype == torch.float32:
        assert abs(moving - 1.95) < 0.01 and abs(mean - 1.5) < 0.01
    else:
        assert moving == mean == 1
PYTHON
