#!/usr/bin/env bash
# A model that was fine-tuned in the script is compared with what it was before, not with what it is.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, trl 1.16.0, datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: a DPOTrainer or KTOTrainer without `ref_model` makes no copy of the model that it is given: it loads the
#            reference from where that model came from, `config._name_or_path`. What was trained, or changed, since then
#            in the same process is not in the reference.
# Seen:      after a fine-tuning in the script DPO begins with a loss of 0.53, and KTO with a reward of 0.4. A policy
#            that is its reference has a loss of ln 2, and no reward; so it is if the model is saved, and loaded, before.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 trl==1.16.0 datasets==5.2.0
run <<'PYTHON'
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

words = {"[PAD]": 0, "[EOS]": 1, **{f"w{i}": i for i in range(2, 32)}}
tokens = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", eos_token="[EOS]")
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes)).save_pretrained("base")
prompts, chosen = [f"w{i}" for i in range(2, 10)], [f"w{i} w3" for i in range(2, 10)]
texts = Dataset.from_dict({"prompt": prompts, "completion": chosen})
pairs = Dataset.from_dict({"prompt": prompts, "chosen": chosen, "rejected": [f"w{i} w4 w5" for i in range(2, 10)]})
liked = texts.add_column("label", [True, False] * 4)
common = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "logging_steps": 1,
          "per_device_train_batch_size": 4, "disable_tqdm": True}


def first_row(trainer, config, model, rows):
    args = config("out", max_steps=1, **common)
    training = trainer(model, args=args, train_dataset=rows, processing_class=tokenizer)
    training.train()
    return training.state.log_history[0]


def tuned():
    model = AutoModelForCausalLM.from_pretrained("base")
    args = SFTConfig("out", max_steps=8, learning_rate=0.02, **common)
    SFTTrainer(model, args=args, train_dataset=texts, processing_class=tokenizer).train()
    return model


def begins(make):
    """Return the loss that DPO begins with, and the reward of chosen answers that KTO does."""
    loss = first_row(DPOTrainer, DPOConfig, make(), pairs)["loss"]
    return round(loss, 4), round(first_row(KTOTrainer, KTOConfig, make(), liked)["rewards/chosen"], 4)


in_memory = begins(tuned)
tuned().save_pretrained("tuned")
loaded = begins(lambda: AutoModelForCausalLM.from_pretrained("tuned"))
print("loss of DPO, reward of KTO at the start, the fine-tuned model given as it is:", in_memory)
print("the same, saved and loaded before:", loaded)
assert loaded == (0.6931, 0.0), loaded
assert abs(in_memory[0] - 0.6931) > 0.001 and abs(in_memory[1]) > 0.001, in_memory
PYTHON
