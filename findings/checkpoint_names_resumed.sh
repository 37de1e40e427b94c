#!/usr/bin/env bash
# A run whose checkpoints are named by itself cannot save after it has been resumed.
#
# Versions:  torch 2.13.0, accelerate 1.15.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: with `automatic_checkpoint_naming=True` `load_state()` takes the newest folder, but the count of saves begins at
#            zero in each process. The first save of the resumed run is refused, since `checkpoint_0` is there, hours after
#            the start if saves are rare. `project_configuration.iteration` must be set by hand; with `total_limit=1` the
#            old folder is deleted first, and the new one has its number again.
# Seen:      a ValueError at the first save after `load_state()`; with the iteration set to 2, `checkpoint_2`.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 accelerate==1.15.0 numpy==2.4.6
cat >train.py <<'PYTHON'
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

resumed, iteration = "resumed" in sys.argv, int(sys.argv[-1])
accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("run", automatic_checkpoint_naming=True))
layer = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
if resumed:
    accelerator.load_state()
    if iteration:
        accelerator.project_configuration.iteration = iteration
for _ in range(2 - resumed):
    accelerator.save_state()
PYTHON
venv/bin/python train.py 0
run <<'PYTHON'
import os
import subprocess
import sys

for iteration in (0, 2):
    ended = subprocess.run([sys.executable, "train.py", "resumed", str(iteration)], capture_output=True, text=True)
    error = ended.stderr.strip().splitlines()[-1] if ended.returncode else "none"
    folders = sorted(os.listdir("run/checkpoints"))
    print(f"resumed, iteration {iteration}: error: {error}; there are {folders}")
    assert ("ValueError" in error) == (iteration == 0), ended.stderr
    assert folders == [f"checkpoint_{i}" for i in range(2 if iteration == 0 else 3)]
PYTHON
