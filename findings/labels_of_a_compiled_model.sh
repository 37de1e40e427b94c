#!/usr/bin/env bash
# With `label_smoothing_factor`, a causal language model that is compiled is scored on the tokens that it is given.
#
# Versions:  transformers 5.24.0, accelerate 1.15.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: The Trainer's smoothed loss compares each prediction with the next token if the model's class is a causal
#            language model's. It asks accelerate for the model without its wrappers, which keeps that of `torch.compile`,
#            a class of another name: labels are not shifted then, in training and in evaluations. The loss of the model
#            itself, without smoothing, is the same compiled or not. No message says so.
# Seen:      A model that repeats the token that it is given: with smoothing a loss of 11.36, and of 0.0 compiled; without
#            smoothing 11.36 both times.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 accelerate==1.15.0 torch==2.13.0
run <<'PYTHON'
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
tokens = torch.arange(2, 14)
rows = [{"input_ids": tokens, "labels": tokens}] * 4


def model():
    """Return one that predicts the token that it is given."""
    made = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    for parameter in made.parameters():
        torch.nn.init.zeros_(parameter)
    made.transformer.wte.weight.data = torch.eye(16)
    made.transformer.ln_f.weight.data.fill_(3.0)
    return made


def loss(**fields):
    args = TrainingArguments("output", use_cpu=True, report_to="none", disable_tqdm=True, **fields)
    return Trainer(model(), args, eval_dataset=rows).evaluate()["eval_loss"]


smoothed, compiled = {"label_smoothing_factor": 1e-6}, {"torch_compile_backend": "eager"}
found = {"plain": loss(), "plain, compiled": loss(**compiled),
         "smoothed": loss(**smoothed), "smoothed, compiled": loss(**smoothed, **compiled)}
print({name: round(value, 3) for name, value in found.items()})
assert found["plain"] > 3 and abs(found["plain"] - found["plain, compiled"]) < 1e-4
assert found["smoothed"] > 3 and found["smoothed, compiled"] < 0.5
PYTHON
