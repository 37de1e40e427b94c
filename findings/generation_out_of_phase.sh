#!/usr/bin/env bash
# GRPO that is resumed inside a window of generation trains on other completions than the unbroken run, up to the end.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, trl 1.16.0, datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: completions are generated every `steps_per_generation * num_iterations` batches, counted from the start of the
#            process, while the prompts are those of the global step. A resume inside a window generates at once, for the
#            prompts of this window, and then a whole window later: the first steps of each later window train on the prompts
#            of the one before it.
# Seen:      with `steps_per_generation=4` the unbroken run generates at steps 0 and 4, the one resumed at 2 at 2 and 6, so
#            that steps 4 and 5 train on the prompts of the first window.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 trl==1.16.0 datasets==5.2.0
run <<'PYTHON'
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = {"[PAD]": 0, "[EOS]": 1, **{f"w{i}": i for i in range(2, 32)}}
tokens = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", eos_token="[EOS]", padding_side="left")
prompts = Dataset.from_dict({"prompt": [f"w{i}" for i in range(2, 10)]})
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def generations(checkpoint=None):
    """Return the step and the prompts of each generation."""
    seen = []

    def reward(prompts, completions, trainer_state, **_):
        seen.append((trainer_state.global_step, sorted(set(prompts))))
        return [float(len(completion) % 3) for completion in completions]

    args = GRPOConfig("out", max_steps=8, steps_per_generation=4, num_generations=2, per_device_train_batch_size=2,
                      max_completion_length=3, shuffle_dataset=False, save_strategy="steps", save_steps=2, use_cpu=True,
                      bf16=False, report_to="none", disable_tqdm=True)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes))
    trainer = GRPOTrainer(model, reward, args=args, train_dataset=prompts, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=checkpoint)
    return seen


first, second = ["w2", "w3", "w4", "w5"], ["w6", "w7", "w8", "w9"]
unbroken, at_a_border, inside = generations(), generations("out/checkpoint-4"), generations("out/checkpoint-2")
print("unbroken:    ", unbroken)
print("resumed at 4:", at_a_border)
print("resumed at 2:", inside)
assert unbroken == [(0, first), (4, second)], unbroken
assert at_a_border == [(4, second)], at_a_border
assert inside == [(2, first), (6, second)], inside
PYTHON
