#!/usr/bin/env bash
# Clipping between accumulated batches clips each partial sum.
#
# Versions:  accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: inside `accelerator.accumulate` the step and the schedule wait for the last batch of a window;
#            `accelerator.clip_grad_norm_` does not, and clips what has been added up so far at each batch.
# Seen:      two batches with gradients of 8 and -6, clipped at 1: the update had a gradient of -1, where their mean is
#            +1.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from accelerate import Accelerator


def gradient(always):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    data = torch.utils.data.DataLoader(torch.tensor([[8.0], [-6.0]]))
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            if always or accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            value = model.weight.grad.item()
            optimizer.step()
            optimizer.zero_grad()
    return round(value, 3)


at_each, at_the_last = gradient(True), gradient(False)
print(f"the gradient of the update, clipped at each batch: {at_each}; at the last only: {at_the_last}")
assert at_each == -1.0 and at_the_last == 1.0
PYTHON
