#!/usr/bin/env bash
# `load_best_model_at_end` by perplexity or word error rate loads the worst model.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: without `greater_is_better` a larger value is better, unless the metric's name ends in `loss`. So the checkpoint
#            with the largest perplexity, error rate or squared error counts as the best, without a message.
# Seen:      of three evaluations with falling loss and perplexity the last is the best by `loss`, and the first by
#            `perplexity`. `greater_is_better=False` mends it.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, labels):
        loss = (self.weight * x).square().mean()
        return {"loss": loss, "logits": loss.expand(len(x))}


def best(**fields):
    args = TrainingArguments("out", use_cpu=True, report_to="none", disable_tqdm=True, max_steps=3, eval_strategy="steps",
                             eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
                             learning_rate=0.1, **fields)
    rows = [{"x": 1.0, "labels": 0.0} for _ in range(24)]
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows,
                      compute_metrics=lambda outputs: {"perplexity": float(torch.tensor(outputs.predictions).mean().exp())})
    trainer.train()
    values = [round(row["eval_perplexity"], 3) for row in trainer.state.log_history if "eval_perplexity" in row]
    return values, trainer.state.best_model_checkpoint[-1], round(trainer.model.weight.item(), 2)


by_loss = best(metric_for_best_model="loss")
by_perplexity = best(metric_for_best_model="perplexity")
told = best(metric_for_best_model="perplexity", greater_is_better=False)
print(f"perplexities {by_loss[0]}: the best step is {by_loss[1]} by loss, {by_perplexity[1]} by perplexity, {told[1]} if told")
assert by_loss[0] == sorted(by_loss[0], reverse=True)
assert (by_loss[1], by_perplexity[1], told[1]) == ("3", "1", "3")
assert by_perplexity[2] > by_loss[2] == told[2]
PYTHON
