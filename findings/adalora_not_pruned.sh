#!/usr/bin/env bash
# AdaLoRA under a Trainer never takes a rank away.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: AdaLoRA gives its ranks to the layers that need them in `update_and_allocate`, which the training loop has
#            to call after each backward pass. The Trainer does not, and nothing says that it was never called: all
#            layers keep `init_r`, and `target_r` has no effect. A callback that calls it in `on_optimizer_step` mends
#            it.
# Seen:      with 4 ranks to begin with and 1 to end with, none of 8 was zero after 20 steps; with the callback some
#            were.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import AdaLoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Allocate(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model, **kwargs):
        model.base_model.update_and_allocate(state.global_step + 1)


def pruned(callbacks):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, max_position_embeddings=32, **sizes))
    config = AdaLoraConfig(task_type="CAUSAL_LM", init_r=4, target_r=1, tinit=2, tfinal=5, deltaT=1, total_step=20,
                           target_modules=["q_proj", "v_proj"])
    model = get_peft_model(model, config)
    row = {"input_ids": torch.arange(4, 12), "labels": torch.arange(4, 12)}
    arguments = TrainingArguments("run", max_steps=20, learning_rate=0.05, use_cpu=True, report_to="none",
                                  save_strategy="no", disable_tqdm=True)
    Trainer(model, arguments, train_dataset=[row] * 8, callbacks=callbacks).train()
    values = torch.cat([weight.flatten() for name, weight in model.named_parameters() if "lora_E" in name])
    return len(values), int((values == 0).sum())


alone, called = pruned([]), pruned([Allocate()])
print("ranks, and how many of them were taken away, by the Trainer alone:", alone, "and with the callback:", called)
assert alone == (8, 0) and called[1] > 0
PYTHON
