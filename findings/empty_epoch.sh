#!/usr/bin/env bash
# A loader's state from the last batch of an epoch resumes into an epoch without a batch.
#
# Versions:  torchdata 0.11.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the state of a `StatefulDataLoader` taken after its last batch is another one before and after the loop has
#            noticed its end: loaded, the first has an empty loop, the second a whole epoch. A checkpoint at the last
#            step of an epoch, written from inside the loop, has the first.
# Seen:      0 batches in the first loop from a state taken in the loop at the last batch, 10 from one taken after the
#            loop.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchdata.stateful_dataloader import StatefulDataLoader


def loader():
    return StatefulDataLoader(torch.arange(10))


def epochs_from(state):
    resumed = loader()
    resumed.load_state_dict(state)
    return [len(list(resumed)) for epoch in range(2)]


running = loader()
for batch in running:
    inside = running.state_dict()
after = running.state_dict()
found = {"inside": epochs_from(inside), "after": epochs_from(after)}
print("batches in the first two loops, resumed from a state at the end of the epoch:", found)
assert found == {"inside": [0, 10], "after": [10, 10]}
PYTHON
