#!/usr/bin/env bash
# Activation checkpointing cannot be turned off by its old name in a copy.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: `TrainingArguments.to_dict` has both names of the field, and the new one wins without a message:
#            `{**args.to_dict(), "gradient_checkpointing": False}` still checkpoints.
# Seen:      `activation_checkpointing` and `gradient_checkpointing` are both True.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
from transformers import TrainingArguments

first = TrainingArguments("out", gradient_checkpointing=True, use_cpu=True, report_to="none")
copied = first.to_dict()
second = TrainingArguments(**{**copied, "gradient_checkpointing": False})
print("asked for gradient_checkpointing=False; the run reads activation_checkpointing =", second.activation_checkpointing)
print("and gradient_checkpointing itself is", second.gradient_checkpointing)
assert second.activation_checkpointing is True and second.gradient_checkpointing is True
PYTHON
