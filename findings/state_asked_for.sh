#!/usr/bin/env bash
# Asking for the state of an optimizer that has not stepped changes the training that follows.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `get_state_dict` of `torch.distributed.checkpoint` steps an optimizer without states, with gradients and
#            learning rate of zero, and leaves what that makes: Adam's step is 1, and its bias correction is one step
#            ahead from then on; the first step of SGD with `dampening` is dampened.
# Seen:      after `get_state_dict` the first step of Adam with a rate of 0.1 is 0.0744, not 0.1; that of SGD with a
#            dampening of 0.5 is half as long.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict


def first_step(optimizer, asked):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = optimizer(model.parameters())
    if asked:
        get_state_dict(model, optimizer)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return round(1.0 - model.weight.item(), 4)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5)


for optimizer in (adam, sgd):
    plain, asked = (first_step(optimizer, asked) for asked in (False, True))
    print(f"{optimizer.__name__}: the first step is {plain}, and {asked} after its state dict was asked for")
    assert plain == 0.1 and asked < 0.08
PYTHON
