"""Trains a model of 64 MB and prints, as JSON, the most memory of each update step in bytes, saves included.

Its arguments are the output folder, and ``async`` to save in the background.
"""

import json
import re
import sys
from pathlib import Path

import torch
from torch import nn

from hf_compat import Trainer, TrainerCallback, TrainingArguments

SIDE, STEPS, SAVE_STEPS = 4096, 6, 3


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))

    def forward(self, x):
        return {"loss": (x @ self.weight).mean()}


class TellsMemory(TrainerCallback):
    def __init__(self):
        self.most = []

    def on_step_begin(self, args, state, control, **kwargs):
        """Between the end of the step before and this point a checkpoint is saved; the background copies it later."""
        if state.global_step:
            status = Path("/proc/self/status").read_text()
            self.most.append(1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now


torch.set_num_threads(1)
memory = TellsMemory()
args = TrainingArguments(
    sys.argv[1],
    max_steps=STEPS,
    save_steps=SAVE_STEPS,
    save_async="async" in sys.argv,
    per_device_train_batch_size=1,
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
rows = [{"x": torch.ones(SIDE)}] * STEPS
Trainer(Square(), args, train_dataset=rows, callbacks=[memory]).train()
print(json.dumps(memory.most))
