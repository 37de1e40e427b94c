#!/usr/bin/env bash
# A run inside of `torch.autocast` computes with the weights of its first step.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: autocast copies each weight to half precision when it is first used, and keeps the copies until the outermost
#            autocast ends. A step of the optimizer in between changes the weights, not the copies. So it is in a loop of one's
#            own, and with `with torch.autocast(...): trainer.train()`, which many notebooks have; the Trainer's own autocast
#            inside ends no outer one, not even one that is disabled.
# Seen:      a weight goes from 1 to -2 in three steps, while the layer computes with 1. A Trainer's loss stays at 3 inside of
#            autocast, and falls to 0 outside of it, with `bf16=True`. `cache_enabled=False` mends it.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import contextlib

import torch
from transformers import Trainer, TrainingArguments

layer = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(layer.weight)
optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
with torch.autocast("cpu", torch.bfloat16):
    outputs = []
    for _ in range(3):
        output = layer(torch.ones(1, 1))
        outputs.append(output.item())
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print(f"outputs: {outputs}; weight: {layer.weight.item()}")
assert outputs == [1.0, 1.0, 1.0] and layer.weight.item() == -2.0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, x, labels):
        return {"loss": (self.layer(x[:, None]) - labels[:, None]).abs().float().mean()}


def losses(outer, bf16):
    args = TrainingArguments("out", use_cpu=True, report_to="none", disable_tqdm=True, max_steps=10, bf16=bf16, logging_steps=1,
                             learning_rate=0.5, lr_scheduler_type="constant", optim="sgd", save_strategy="no",
                             per_device_train_batch_size=4)
    trainer = Trainer(Model(), args, train_dataset=[{"x": 1.0, "labels": 3.0}] * 4)
    with outer:
        trainer.train()
    return [round(row["loss"], 2) for row in trainer.state.log_history if "loss" in row]


outside = losses(contextlib.nullcontext(), True)
inside = losses(torch.autocast("cpu", torch.bfloat16), False)
disabled = losses(torch.autocast("cpu", enabled=False), True)
uncached = losses(torch.autocast("cpu", torch.bfloat16, cache_enabled=False), False)
print(f"losses outside: {outside}; inside: {inside}; inside of one that is disabled: {disabled}; without cache: {uncached}")
assert inside == disabled == [3.0] * 10
assert outside == uncached and outside[-1] == 0
PYTHON
