#!/usr/bin/env bash
# Checkpoints of some optimizers are written, and cannot be resumed from.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, galore-torch 1.0, apollo-torch 1.0.3, pytorch-
#            optimizer 4.1.0; Python 3.11 on a CPU
# Behaviour: these optimizers keep objects of their own in their state, so that `optimizer.pt` is written but cannot be
#            read by `torch.load(weights_only=True)`, which the Trainer uses.
# Seen:      `UnpicklingError` for galore_adamw and apollo_adamw, and for AdaShift, Conda and SCION of pytorch-
#            optimizer; adamw_torch resumes.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 galore-torch==1.0 apollo-torch==1.0.3 pytorch-optimizer==4.1.0
run <<'PYTHON'
import pickle

import torch
from pytorch_optimizer import AdaShift, Conda, SCION
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).mean(-1) - labels).square().mean()}


rows = [{"x": torch.full((16,), float(i % 3)), "labels": torch.tensor(float(i % 2))} for i in range(8)]


def trainer(name, **given):
    fields = {} if given else {"optim": name, "optim_target_modules": ["layer"]}
    args = TrainingArguments(
        name, max_steps=4, save_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to="none",
        disable_tqdm=True, **fields,
    )
    return Trainer(Model(), args, train_dataset=rows, **given)


optimizers = {"adamw_torch": {}, "galore_adamw": {}, "apollo_adamw": {}}
optimizers |= {kind.__name__: {"optimizer_cls_and_kwargs": (kind, {"lr": 1e-3})} for kind in (AdaShift, Conda, SCION)}
seen = {}
for name, given in optimizers.items():
    trainer(name, **given).train()
    try:
        trainer(name, **given).train(resume_from_checkpoint=f"{name}/checkpoint-2")
        seen[name] = "resumed"
    except pickle.UnpicklingError as error:
        seen[name] = type(error).__name__
print("saved, then:", seen)
assert seen == dict.fromkeys(optimizers, "UnpicklingError") | {"adamw_torch": "resumed"}
PYTHON
