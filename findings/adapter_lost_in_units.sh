#!/usr/bin/env bash
# An adapter in the units of FSDP 1 is saved without a single weight.
#
# Versions:  peft 0.21.2, torch 2.13.0, transformers 5.24.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: PEFT selects the weights of an adapter by the names of its layers. FSDP 1 puts a wrapper around each unit,
#            which is part of these names and not of those in a state dict, so that none is selected. No error, no
#            message: `save_pretrained` writes a file without tensors, and `load_adapter` takes it.
# Seen:      two weights before the model was wrapped, none after, although the state dict had both.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 torch==2.13.0 transformers==5.24.0 numpy==2.4.6
run <<'PYTHON'
from functools import partial

import torch
import torch.distributed
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy
from transformers import LlamaConfig, LlamaForCausalLM

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes))
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
before = sorted(get_peft_model_state_dict(model))
layer = model.base_model.model.model.layers[0]
policy = partial(lambda_auto_wrap_policy, lambda_fn=lambda module: module is layer)
FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
there = sorted(name for name in model.state_dict() if "lora_" in name)
after = sorted(get_peft_model_state_dict(model))
print(f"saved before: {before}\nin the state dict: {there}\nsaved after: {after}")
assert (len(before), len(there), after) == (2, 2, [])
torch.distributed.destroy_process_group()
PYTHON
