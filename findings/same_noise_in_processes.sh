#!/usr/bin/env bash
# Noise that `map` adds in several processes is the same in each of them.
#
# Versions:  datasets 5.2.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on Linux, on a CPU
# Behaviour: `map(num_proc=2)` makes its processes by a fork, and seeds nothing in them: NumPy's and torch's generators
#            begin with the same state in each, so that the second half of the rows has the random numbers of the first.
#            Only Python's `random` is not the same.
# Seen:      of six rows in two processes the numbers 0, 1, 2 and 3, 4, 5 are equal with NumPy and with torch.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import random

import datasets
import numpy
import torch

datasets.disable_progress_bars()


def noise(row):
    return {"numpy": float(numpy.random.rand()), "torch": torch.rand(1).item(), "random": random.random()}


halves = {}
for processes in (None, 2):
    mapped = datasets.Dataset.from_dict({"row": range(6)}).map(noise, num_proc=processes, load_from_cache_file=False)
    for name in ("numpy", "torch", "random"):
        values = mapped[name][:]
        halves[processes, name] = values[:3] == values[3:]
        print(f"num_proc={processes}, {name}:", [round(value, 3) for value in values])
assert [key for key, equal in halves.items() if equal] == [(2, "numpy"), (2, "torch")]
PYTHON
