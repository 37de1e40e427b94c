#!/usr/bin/env bash
# The first step of IVON after a resume is ten times as long.
#
# Versions:  ivon-opt 0.1.3, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the momentum and the Hessian of IVON are in its state dict, the number of its steps, by which it corrects the
#            momentum's beginning, is not: a resumed momentum is divided by 1 - 0.9 once more, as if it had been zero before.
# Seen:      the same gradient of 1 at each step, without noise: the 101st step is 0.1 long in one run, and 1.0 in one that was
#            resumed after 100. Setting `optimizer.current_step` mends it.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install ivon-opt==0.1.3 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from ivon import IVON


def new():
    weight = torch.nn.Parameter(torch.zeros(1))
    return weight, IVON([weight], lr=0.1, ess=1e12, beta2=1.0, weight_decay=0.0)  # hardly any noise, a constant Hessian


def step(weight, optimizer):
    before = weight.item()
    with optimizer.sampled_params(train=True):
        optimizer.zero_grad()
        weight.sum().backward()
    optimizer.step()
    return round(before - weight.item(), 3)


weight, optimizer = new()
for _ in range(100):
    step(weight, optimizer)
state, value = optimizer.state_dict(), weight.detach().clone()
lengths = {"unbroken": step(weight, optimizer)}
for name, count in (("resumed", None), ("with its count", 100)):
    weight, optimizer = new()
    weight.data.copy_(value)
    optimizer.load_state_dict(state)
    if count is not None:
        optimizer.current_step = count
    lengths[name] = step(weight, optimizer)
print(f"length of the step after the hundredth: {lengths}")
assert lengths["unbroken"] == lengths["with its count"]
assert 9 < lengths["resumed"] / lengths["unbroken"] < 11
PYTHON
