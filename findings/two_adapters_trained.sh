#!/usr/bin/env bash
# Two adapters that are trained together cannot be resumed, and the best of them is one half.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: Checkpoints have both adapters. Resuming leaves only the first active and trainable, so that the
#            optimizer's state, of both, does not fit. `load_best_model_at_end` loads the first alone: the model is then
#            the best of one adapter with the last of the other.
# Seen:      resuming raised a ValueError about a parameter group that does not match; of the best checkpoint, that of
#            step 1, one adapter was restored and the other was not.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

ROWS = [{"input_ids": torch.arange(4, 12), "labels": torch.arange(4, 12)}] * 8


def train(resume=None, **fields):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, max_position_embeddings=32, **sizes))
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    model.add_adapter("second", LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj"]))
    model.base_model.set_adapter(["default", "second"])
    arguments = TrainingArguments("run", max_steps=4, learning_rate=0.05, use_cpu=True, report_to="none",
                                  save_strategy="steps", save_steps=1, disable_tqdm=True, **fields)
    trainer = Trainer(model, arguments, train_dataset=ROWS, eval_dataset=ROWS[:2])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


# The loss falls, so that the "greatest" is that of the first evaluation.
best = train(eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, metric_for_best_model="loss",
             greater_is_better=True)
folder = best.state.best_model_checkpoint
restored = {}
for name, place in (("default", folder), ("second", folder + "/second")):
    saved = load_file(place + "/adapter_model.safetensors")
    now = [weight for key, weight in best.model.named_parameters() if f".{name}." in key]
    restored[name] = all(any(torch.equal(weight, other) for other in now) for weight in saved.values())
print("the best checkpoint is", folder, "restored were:", restored)
assert restored == {"default": True, "second": False}
try:
    train("run/checkpoint-2")
except ValueError as error:
    print("resumed:", error)
else:
    raise AssertionError("resuming did not fail")
PYTHON
