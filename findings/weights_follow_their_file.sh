#!/usr/bin/env bash
# The weights of a loaded model change when its file is copied over.
#
# Versions:  safetensors 0.8.0, torch 2.13.0, numpy 2.4.6, transformers 5.24.0; Python 3.11 on Linux, on a CPU
# Behaviour: what `load_file` and `from_pretrained` return on a CPU lies in the file itself, mapped into memory, until
#            it is written to. A copy over the file writes into it: weights that are not trained, those of a reference,
#            a teacher or the base of an adapter, are then those of the new file, without a message. `save_file` writes
#            another file in its place, and changes nothing; `torch.load` reads.
# Seen:      zeros that were loaded are ones after the file was copied over, and zeros after `save_file` of ones;
#            nearly all weights of a model are those of another one, whose folder was copied over its own.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install safetensors==0.8.0 torch==2.13.0 numpy==2.4.6 transformers==5.24.0
run <<'PYTHON'
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
means = {}
for how in ("copied", "saved"):
    save_file({"weight": torch.zeros(100_000)}, "model.safetensors")
    loaded = load_file("model.safetensors")["weight"]
    if how == "copied":
        save_file({"weight": torch.ones(100_000)}, "other.safetensors")
        shutil.copyfile("other.safetensors", "model.safetensors")
    else:
        save_file({"weight": torch.ones(100_000)}, "model.safetensors")
    means[how] = loaded.mean().item()
print("mean of zeros that were loaded before ones were written over their file:", means)

config = LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=2)
LlamaForCausalLM(config).save_pretrained("model")
LlamaForCausalLM(config).save_pretrained("other")
model = LlamaForCausalLM.from_pretrained("model")
before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
shutil.copytree("other", "model", dirs_exist_ok=True)
changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
print(f"{len(changed)} of {len(before)} weights have changed:", changed)
assert means == {"copied": 1.0, "saved": 0.0}
assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(changed)
PYTHON
