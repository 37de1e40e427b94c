#!/usr/bin/env bash
# A package that is not there is looked for at every update step.
#
# Versions:  torch 2.13.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: accelerate's wrapper of the optimizer asks twice in each `step` whether `lomo_optim` is installed. That it
#            is not is not remembered, so that each question goes through all of `sys.path`, and a step costs more the
#            longer that is.
# Seen:      20 questions in 10 steps, each through the whole path.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 accelerate==1.15.0
run <<'PYTHON'
import importlib.util
import sys

import torch
from accelerate import Accelerator

asked = []
find_spec = importlib.util.find_spec


def counted(name, *args, **kwargs):
    asked.append(name)
    return find_spec(name, *args, **kwargs)


class Finder:
    """At the end of the import system: what is asked here was looked for in every folder of ``sys.path``."""

    searched = []

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        cls.searched.append(name)


importlib.util.find_spec = counted
sys.meta_path.append(Finder)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
asked.clear(), Finder.searched.clear()
for step in range(10):
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    optimizer.zero_grad()
print(f"10 steps: find_spec('lomo_optim') {asked.count('lomo_optim')} times, "
      f"{Finder.searched.count('lomo_optim')} of them through the whole of sys.path ({len(sys.path)} entries)")
assert asked.count("lomo_optim") >= 10
PYTHON
