#!/usr/bin/env bash
# The evaluation loss of a language model depends on the batch size.
#
# Versions:  transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: In training, the loss of a step is the mean over all its tokens, however they are batched. In an evaluation
#            it is the mean over a batch's tokens, and of these means that over rows: a token of a short text weighs
#            more if the text is alone in its batch. The last batch, and each rank, is weighted so, too.
# Seen:      texts of 3 and 12 tokens: the evaluation losses at batch sizes 1 and 2 differed by more than 0.1; the
#            training losses of one step, accumulated and not, were equal.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

ROWS = [{"input_ids": torch.tensor([5] * 12), "labels": torch.tensor([5] * count + [-100] * (12 - count))}
        for count in (3, 12)]
ROWS[0]["input_ids"][:3] = torch.tensor([7, 8, 9])
ROWS[0]["labels"][:3] = torch.tensor([7, 8, 9])


def losses(batch_size):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=32, num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.5, **sizes)
    arguments = TrainingArguments("run", per_device_train_batch_size=batch_size, gradient_accumulation_steps=2 // batch_size,
                                  per_device_eval_batch_size=batch_size, max_steps=1, learning_rate=0.0, use_cpu=True,
                                  report_to="none", save_strategy="no", disable_tqdm=True)
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=ROWS, eval_dataset=ROWS)
    return trainer.train().training_loss, trainer.evaluate()["eval_loss"]


one, two = losses(1), losses(2)
print("losses of the training and of the evaluation, batch size 1:", one, "and 2:", two)
assert abs(one[0] - two[0]) < 0.001
assert abs(one[1] - two[1]) > 0.1
PYTHON
