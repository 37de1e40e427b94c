#!/usr/bin/env bash
# The last evaluation of a run reduces the learning rate once more.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: since release 5.4 the Trainer evaluates at the last update step whatever `eval_steps` is, and this
#            evaluation steps a plateau schedule; transformers 4.57.6 does not. A run of five steps ends with another
#            learning rate than the same run of four.
# Seen:      0.5 after four steps, 0.25 after five, where no interval ends.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, labels):
        return {"loss": 0 * self.weight + labels.mean()}  # never gets better


rows = [{"labels": torch.tensor(1.0)}] * 5


def rate(steps):
    args = TrainingArguments(
        "out", lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"factor": 0.5, "patience": 0},
        learning_rate=1.0, max_steps=steps, eval_strategy="steps", eval_steps=2, per_device_train_batch_size=1,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", remove_unused_columns=False,
    )
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_loss" in row]
    return trainer.optimizer.param_groups[0]["lr"], evaluated


for steps in (4, 5):
    print(f"{steps} steps, eval_steps=2: evaluations at {rate(steps)[1]}, learning rate at the end {rate(steps)[0]}")
assert rate(4) == (0.5, [2, 4])
assert rate(5) == (0.25, [2, 4, 5])
PYTHON
