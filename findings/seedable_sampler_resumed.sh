#!/usr/bin/env bash
# With `use_seedable_sampler=True` a loop that was resumed by `load_state` has the orders of the first epochs again.
#
# Versions:  torch 2.13.0, numpy 2.4.6, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: the sampler shuffles by its seed and the epoch. `save_state` saves neither: only random generators, which it
#            does not draw from. So a resumed loop begins with the order of epoch 0, or with those of another seed, unless it
#            calls `set_epoch`. Without the sampler, which is the default, the generators are enough.
# Seen:      after two epochs, a save and a load the third had the order of the first, and of no epoch where the process had
#            another seed; without the sampler it had that of the unbroken loop, with `set_epoch(2)` too.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
run <<'PYTHON'
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader


def prepared(seedable, seed):
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    return accelerator, accelerator.prepare(DataLoader(range(20), batch_size=2, shuffle=True))


def order(loader):
    return [batch.tolist() for batch in loader]


for seedable in (False, True):
    accelerator, loader = prepared(seedable, 0)
    epochs = [order(loader), order(loader)]
    accelerator.save_state(f"state-{seedable}")
    epochs.append(order(loader))
    resumed = {}
    for name, seed, epoch in (("same seed", 0, None), ("another seed", 5, None), ("set_epoch", 0, 2)):
        again, loader = prepared(seedable, seed)
        again.load_state(f"state-{seedable}")
        if epoch is not None:
            loader.set_epoch(epoch)
        found = order(loader)
        resumed[name] = epochs.index(found) if found in epochs else None
    print(f"use_seedable_sampler={seedable}: the third epoch has the order of epoch {resumed}")
    expected = {"same seed": 0, "another seed": None, "set_epoch": 2} if seedable else dict.fromkeys(resumed, 2)
    assert resumed == expected
PYTHON
