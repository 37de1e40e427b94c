#!/usr/bin/env bash
# An adapter that was loaded frozen can be trained after it has been disabled for a moment.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `PeftModel.from_pretrained` freezes the adapter unless `is_trainable` is set. The end of `with
#            model.disable_adapter()`, as reference log-probabilities are computed, enables it again, and with that
#            makes its parameters require gradients.
# Seen:      no parameter of the adapter before, all of them after; an optimizer made in between has none of them.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import LoraConfig, PeftModel, get_peft_model


def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 2))


get_peft_model(model(), LoraConfig(r=1, target_modules=["0"])).save_pretrained("adapter")
loaded = PeftModel.from_pretrained(model(), "adapter")


def trainable():
    return [name for name, parameter in loaded.named_parameters() if parameter.requires_grad]


before = trainable()
with loaded.disable_adapter():
    loaded(torch.ones(1, 2))
print("trainable before:", before)
print("trainable after:", trainable())
assert before == [] and len(trainable()) == 2
PYTHON
