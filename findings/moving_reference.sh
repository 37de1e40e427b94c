#!/usr/bin/env bash
# A reference that follows the model begins anew when a run is resumed, and so does an average of the weights.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, trl 1.16.0, datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: with `sync_ref_model=True` the reference model takes steps towards the policy during the training, and
#            `BEMACallback` keeps an average of the weights. Neither is in a checkpoint: a resumed run has the reference of
#            the beginning, and an average that begins with the weights of the checkpoint. No message says so.
# Seen:      losses of DPO after a resume at step 4 are those of the unbroken run to the bit with a fixed reference, and
#            others with one that is synced; BEMA's model is another one at the end.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 trl==1.16.0 datasets==5.2.0
run <<'PYTHON'
import torch
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import BEMACallback, DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

words = {"[PAD]": 0, "[EOS]": 1, **{f"w{i}": i for i in range(2, 32)}}
tokens = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", eos_token="[EOS]")
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes)).save_pretrained("base")
prompts, chosen = [f"w{i}" for i in range(2, 10)], [f"w{i} w3" for i in range(2, 10)]
pairs = Dataset.from_dict({"prompt": prompts, "chosen": chosen, "rejected": [f"w{i} w4 w5" for i in range(2, 10)]})
common = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "steps", "save_steps": 4, "max_steps": 8,
          "logging_steps": 1, "learning_rate": 0.02, "per_device_train_batch_size": 2, "disable_tqdm": True}


def losses(checkpoint=None, **fields):
    args = DPOConfig("dpo", **common, **fields)
    trainer = DPOTrainer(AutoModelForCausalLM.from_pretrained("base"), args=args, train_dataset=pairs,
                         processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=checkpoint)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row][4:]


def average(checkpoint=None):
    args = SFTConfig("sft", **common)
    SFTTrainer(AutoModelForCausalLM.from_pretrained("base"), args=args, train_dataset=Dataset.from_dict({"text": chosen}),
               processing_class=tokenizer, callbacks=[BEMACallback(update_freq=1)]).train(resume_from_checkpoint=checkpoint)
    return load_file("sft/bema/model.safetensors")


fixed = losses(), losses("dpo/checkpoint-4")
synced = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.9}
moving = losses(**synced), losses("dpo/checkpoint-4", **synced)
for name, (unbroken, resumed) in {"fixed": fixed, "synced": moving}.items():
    print(f"{name} reference: losses of steps 5 to 8 {unbroken}, resumed {resumed}")
unbroken, resumed = average(), average("sft/checkpoint-4")
last = load_file("sft/checkpoint-8/model.safetensors")
off = max((unbroken[name] - resumed[name]).abs().max().item() for name in unbroken)
print(f"BEMA's weights of the resumed run are up to {off:.2g} off those of the unbroken one")
assert fixed[0] == fixed[1], fixed
assert moving[0][0] != moving[1][0], moving
assert off > 1e-4 and all(torch.isfinite(weight).all() for weight in last.values()), off
PYTHON
