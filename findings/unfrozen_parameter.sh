#!/usr/bin/env bash
# A parameter that a callback unfreezes is not trained, but clips the others.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: the optimizer is made of the parameters that can be trained at the beginning. One that a `TrainerCallback`
#            unfreezes later gets a gradient and no update; the gradient counts in the norm that is logged and clipped
#            by.
# Seen:      norm 5 instead of 3; the unfrozen parameter unchanged, and the steps of the other one 40 % shorter.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Parameter(torch.tensor(1.0))
        self.body = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, labels):
        return {"loss": 3 * self.head + 4 * self.body + 0 * labels.sum()}  # gradients 3 and 4


class Unfreeze(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 1:
            model.body.requires_grad_(True)


args = TrainingArguments("out", optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=3.0,
                         max_steps=3, logging_steps=1, per_device_train_batch_size=1, use_cpu=True, report_to="none",
                         disable_tqdm=True, save_strategy="no", remove_unused_columns=False)
trainer = Trainer(Model(), args, train_dataset=[{"labels": torch.tensor(0.0)}] * 3, callbacks=[Unfreeze()])
trainer.train()
norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
model = trainer.model
print(f"gradient norms {norms}; body, unfrozen at step 2, is still {model.body.item()}; head went to {model.head.item():.3f}")
assert model.body.item() == 1.0
assert [round(norm, 3) for norm in norms] == [3.0, 5.0, 5.0]
assert abs(model.head.item() - (1 - 0.1 * 3 - 2 * 0.1 * 3 * 3 / 5)) < 1e-4  # not 1 - 0.9
PYTHON
