#!/usr/bin/env bash
# Next to an adapter in float32 a module of `modules_to_save` is trained in bfloat16, and hardly moves.
#
# Versions:  torch 2.13.0, transformers 5.24.0, peft 0.21.2; Python 3.11 on a CPU
# Behaviour: `get_peft_model` makes the weights of an adapter in float32, if those of the model are in bfloat16
#            (`autocast_adapter_dtype`), and `trainable_token_indices` too. A module of `modules_to_save`, such as the
#            head, keeps the model's type: steps smaller than about 1/256 of a weight are rounded away.
# Seen:      after a hundred steps of AdamW with a rate of 1e-6 not one of 512 weights of a head in bfloat16 has
#            changed; cast to float32 before the training, all of them have.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 peft==0.21.2
run <<'PYTHON'
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=2, pad_token_id=0)
ids = torch.tensor([[3, 4, 5, 6]])


def trained(cast):
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    torch.nn.init.uniform_(model.lm_head.weight, 0.05, 0.06)
    model = get_peft_model(model.bfloat16(), LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"],
                                                        trainable_token_indices=[3], task_type="CAUSAL_LM"))
    head = model.lm_head.modules_to_save["default"]
    types = {str(parameter.dtype) for name, parameter in model.named_parameters()
             if parameter.requires_grad and "lm_head" not in name}
    if cast:
        head.float()
    before = head.weight.detach().clone()
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-6, weight_decay=0.0)
    for _ in range(100):
        with torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = (head.weight != before).sum().item()
    print(f"the head is {head.weight.dtype}, the rest that is trained {types}: {changed} of {before.numel()} changed")
    assert types == {"torch.float32"}
    return changed


assert trained(cast=False) == 0
assert trained(cast=True) == 512
PYTHON
