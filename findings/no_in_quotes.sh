#!/usr/bin/env bash
# `"gradient_checkpointing": "false"` in a file or dict of arguments switches it on.
#
# Versions:  transformers 5.24.0, accelerate 1.15.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: `HfArgumentParser` converts what it reads from a command line, and nothing of what it reads with `parse_dict`,
#            `parse_json_file` or `parse_yaml_file`, as from a template or an environment. A text that says no is true
#            wherever a field is asked for yes or no. No message says so.
# Seen:      "false" for `gradient_checkpointing` and for `load_best_model_at_end`: the model checkpoints its activations,
#            and the best model is loaded; neither with `--gradient_checkpointing false` on a command line.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 accelerate==1.15.0 torch==2.13.0
run <<'PYTHON'
import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
parser = HfArgumentParser(TrainingArguments)
fixed = {"output_dir": "output", "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps",
         "save_steps": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
choices = {"gradient_checkpointing": "false", "load_best_model_at_end": "false"}
(read,) = parser.parse_dict({**fixed, **choices})
line = [f"--{name}={value}" for name, value in {**fixed, **choices}.items()]
(typed,) = parser.parse_args_into_dataclasses(line)


def train(args):
    model = BertForSequenceClassification(BertConfig(vocab_size=4, hidden_size=16, num_hidden_layers=1,
                                                     num_attention_heads=2, intermediate_size=16))
    rows = [{"input_ids": [index % 4], "labels": index % 2} for index in range(16)]
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return model.is_gradient_checkpointing, trainer.state.best_model_checkpoint is not None


for name, args in (("read", read), ("typed", typed)):
    on, has_best = train(args)
    print(f"{name}: {args.gradient_checkpointing!r}, checkpoints activations: {on}, {args.load_best_model_at_end!r}")
    assert on == (name == "read")
    assert bool(args.load_best_model_at_end) == (name == "read")
PYTHON
