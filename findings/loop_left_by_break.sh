#!/usr/bin/env bash
# An evaluation that is left by `break` costs the epoch its last update.
#
# Versions:  accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: accelerate takes the last batch of the loader that was begun last for the end of the data. A loop that is
#            left by `break` counts as unfinished for ever, so that the end of the loader around it is not seen, and
#            what was accumulated last is not applied in this epoch. A loader that was not prepared has no end either.
# Seen:      10 batches, accumulated by 4: 3 updates, the last of 2 batches; 2 updates if two batches of another loader
#            were looked at in between, or if the loader was not prepared.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader


def updates(*, prepared=True, looks_at_another=False):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader, other = (DataLoader(torch.ones(count, 1)) for count in (10, 5))
    model, optimizer, other = accelerator.prepare(model, optimizer, other)
    if prepared:
        loader = accelerator.prepare(loader)
    count = 0
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
            count += accelerator.sync_gradients
        if number == 3 and looks_at_another:
            for seen, _ in enumerate(other):
                if seen == 1:
                    break
    return count


counts = updates(), updates(prepared=False), updates(looks_at_another=True)
print("updates; with a loader that was not prepared; after another loop was left by break:", counts)
assert counts == (3, 2, 2)
PYTHON
