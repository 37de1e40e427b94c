#!/usr/bin/env bash
# A resumed loader with a generator has other orders in the epochs after.
#
# Versions:  torch 2.13.0, torchdata 0.11.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the state of a `StatefulDataLoader` that shuffles is exact for the epoch it was saved in. A `generator`
#            that it was made with, as one does for runs that can be repeated, is not restored for what follows: the
#            next epochs are other ones than in the unbroken run. Without `generator` they are the same.
# Seen:      saved after 3 of 10 samples: the rest of the epoch is as unbroken in both; the second and third epoch only
#            without a generator, even if the resumed process has another random state.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 torchdata==0.11.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchdata.stateful_dataloader import StatefulDataLoader


def loader(has_generator):
    generator = torch.Generator().manual_seed(3) if has_generator else None
    return StatefulDataLoader(range(10), shuffle=True, generator=generator)


def values(batches):
    return [batch.item() for batch in batches]


def compare(has_generator):
    """Return which of the rest of the epoch, the second and the third epoch are the same after a resume."""
    torch.manual_seed(0)
    whole = loader(has_generator)
    batches = iter(whole)
    for _ in range(3):
        next(batches)
    state = whole.state_dict()
    unbroken = values(batches), values(whole), values(whole)
    torch.manual_seed(99)
    resumed = loader(has_generator)
    resumed.load_state_dict(state)
    goes_on = values(resumed), values(resumed), values(resumed)
    print(f"generator: {has_generator}; the second epoch is {unbroken[1]}, after the resume {goes_on[1]}")
    return [one == other for one, other in zip(unbroken, goes_on, strict=True)]


assert compare(False) == [True, True, True]
assert compare(True) == [True, False, False]
PYTHON
