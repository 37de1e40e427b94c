#!/usr/bin/env bash
# With `bf16_full_eval` an evaluation before the training has all of the training done in bfloat16.
#
# Versions:  transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `evaluate` and `predict` outside of a training cast the model itself to bfloat16, and leave it so. `train` goes
#            on with that: weights and optimizer are in bfloat16, without a message, and small updates are rounded away; what
#            is saved after the last evaluation is in bfloat16, too. An evaluation during the training casts nothing.
# Seen:      a weight of 1 that is trained by 100 steps of 0.001 is 0.9, and 1 after an evaluation.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from transformers import Trainer, TrainingArguments, logging

logging.set_verbosity_error()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, row, labels):
        return {"loss": self.weight * row.mean()}


def trained(evaluates_before):
    rows = [{"row": torch.ones(()), "labels": 0}] * 100
    args = TrainingArguments("run", bf16_full_eval=True, max_steps=100, per_device_train_batch_size=1, max_grad_norm=0,
                             optim="sgd", learning_rate=1e-3, lr_scheduler_type="constant", save_strategy="no",
                             report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows[:1])
    if evaluates_before:
        trainer.evaluate()
    trainer.train()
    return trainer.model.weight.dtype, round(trainer.model.weight.item(), 3)


alone, after = trained(False), trained(True)
print("trained alone:", alone, "after an evaluation:", after)
assert alone == (torch.float32, 0.9)
assert after == (torch.bfloat16, 1.0)
PYTHON
