#!/usr/bin/env bash
# A model saved in shards over one saved in one file is not the one that is loaded.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, safetensors 0.8.0; Python 3.11 on a CPU
# Behaviour: `save_pretrained(folder, max_shard_size=...)` removes the shards of an earlier save, not its single
#            `model.safetensors`, and each reader takes that file before the index of the shards: the old weights are
#            loaded, without a message. The other way round the shards are removed, their index stays, and is not read.
# Seen:      1.0 was saved, then 7.0 in shards: `from_pretrained` and `load_checkpoint_in_model` read 1.0.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 safetensors==0.8.0
run <<'PYTHON'
import os

import torch
from accelerate import load_checkpoint_in_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=32, num_key_value_heads=2, tie_word_embeddings=False, **sizes)


def save(folder, value, **options):
    model = LlamaForCausalLM(config)
    torch.nn.init.constant_(model.lm_head.weight, value)
    model.save_pretrained(folder, **options)


def read(folder):
    model = LlamaForCausalLM(config)
    load_checkpoint_in_model(model, folder)
    models = [AutoModelForCausalLM.from_pretrained(folder), model]
    return [model.lm_head.weight[0, 0].item() for model in models]


save("shards", 7.0, max_shard_size="2KB")
print("shards alone:", read("shards"))
assert read("shards") == [7.0, 7.0]

save("both", 1.0)
save("both", 7.0, max_shard_size="2KB")
print("one file of 1.0, then shards of 7.0:", read("both"))
assert {"model.safetensors", "model.safetensors.index.json"} <= set(os.listdir("both"))
assert read("both") == [1.0, 1.0]

save("back", 1.0, max_shard_size="2KB")
save("back", 7.0)
print("shards of 1.0, then one file of 7.0:", read("back"))
assert "model.safetensors.index.json" in os.listdir("back")
assert read("back") == [7.0, 7.0]
PYTHON
