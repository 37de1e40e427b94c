#!/usr/bin/env bash
# A checkpoint with grokadamw has no state of the optimizer.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, grokadamw 0.1.2; Python 3.11 on a CPU
# Behaviour: with `optim="grokadamw"` the saved state dict of the optimizer is empty: a resumed run starts with new
#            averages and ends with other weights, without a message.
# Seen:      states of 0 parameters saved, of 2 with adamw_torch; weights 0.011 off, 0 with adamw_torch.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 grokadamw==0.1.2
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


rows = [{"x": torch.full((4,), float(i % 3)), "labels": torch.tensor(float(i % 2))} for i in range(12)]
fields = {"max_steps": 6, "save_steps": 3, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": "none",
          "disable_tqdm": True, "learning_rate": 0.1, "save_total_limit": None}


def weights(optim, resume=None):
    trainer = Trainer(Model(), TrainingArguments(optim, optim=optim, **fields), train_dataset=rows)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.layer.weight.detach().clone()


for optim in ("adamw_torch", "grokadamw"):
    whole = weights(optim)
    state = torch.load(f"{optim}/checkpoint-3/optimizer.pt", weights_only=True)["state"]
    resumed = weights(optim, f"{optim}/checkpoint-3")
    difference = (whole - resumed).abs().max().item()
    print(f"{optim}: states of {len(state)} parameters saved; resumed, weights are {difference:.3g} off")
    is_lost = optim == "grokadamw"
    assert (len(state) == 0) == is_lost
    assert (difference > 1e-4) == is_lost
PYTHON
