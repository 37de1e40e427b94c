#!/usr/bin/env bash
# A warm-up whose schedule is made after its optimizer was loaded has a tenth of its rates, and so has what follows.
#
# Versions:  torch 2.13.0; Python 3.11 on a CPU
# Behaviour: making a `LinearLR` multiplies the rate of the optimizer by its first factor. Loading the schedule's state
#            does not set it again, and most schedules make each rate from the one before, so that the factor stays for
#            the whole run. Both made first and then loaded, in whichever order, is right.
# Seen:      LinearLR from 0.1, then CosineAnnealingLR, saved at step 6 with a rate of 0.9045: resumed with 0.9045,
#            0.7939, 0.6545; or with 0.1, 0.0878, 0.0724, if the schedule is made after the optimizer was loaded.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0
run <<'PYTHON'
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)


def schedule(of):
    return SequentialLR(of, [LinearLR(of, 0.1, total_iters=4), CosineAnnealingLR(of, 10)], milestones=[4])


def rates(optimizer, schedule, steps):
    values = []
    for _ in range(steps):
        values.append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        schedule.step()
    return values


first = optimizer()
of_first = schedule(first)
rates(first, of_first, 6)
saved = first.state_dict(), of_first.state_dict()
unbroken = rates(first, of_first, 3)

before = optimizer()
of_before = schedule(before)
before.load_state_dict(saved[0])
of_before.load_state_dict(saved[1])

after = optimizer()
after.load_state_dict(saved[0])
of_after = schedule(after)
of_after.load_state_dict(saved[1])

made_before, made_after = rates(before, of_before, 3), rates(after, of_after, 3)
print(f"unbroken: {unbroken}\nschedule made before the optimizer was loaded: {made_before}\nafter: {made_after}")
assert made_before == unbroken == [0.9045, 0.7939, 0.6545]
assert made_after == [0.1, 0.0878, 0.0724]
PYTHON
