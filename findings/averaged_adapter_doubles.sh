#!/usr/bin/env bash
# The average of an adapter and itself has twice its effect.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `add_weighted_adapter` with `combination_type='linear'` adds the two matrices of an adapter one by one,
#            each by the root of its weight. Their product has the terms between the adapters, too, so that it is not
#            the weighted sum of what the adapters do; `cat` and `svd` are.
# Seen:      weights of 0.5 and 0.5 of two equal adapters: twice the change with `linear`, the change itself with `cat`.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import LoraConfig, get_peft_model

config = LoraConfig(r=1, target_modules=["0"], init_lora_weights=False)
model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), config)
model.add_adapter("same", config)
layer = model.base_model.model[0]
for matrices in (layer.lora_A, layer.lora_B):
    matrices["same"].load_state_dict(matrices["default"].state_dict())
factors = {}
for kind in ("linear", "cat"):
    model.add_weighted_adapter(["default", "same"], [0.5, 0.5], kind, combination_type=kind)
    factors[kind] = round((layer.get_delta_weight(kind) / layer.get_delta_weight("default")).mean().item(), 3)
print("the change of the average, as a multiple of the change of each:", factors)
assert factors == {"linear": 2.0, "cat": 1.0}
PYTHON
