#!/usr/bin/env bash
# The best model of a schedule-free optimizer is changed when it is evaluated.
#
# Versions:  torch 2.13.0, transformers 4.57.6, accelerate 1.15.0, schedulefree 1.4.1; Python 3.11 on a CPU
# Behaviour: where the last step was not evaluated, the optimizer is still in training mode as `load_best_model_at_end`
#            loads the best weights; the next `evaluate` puts it in evaluation mode, which moves these weights by the
#            state of the last step. In transformers 5.4 and later the last step is always evaluated.
# Seen:      best_metric 0.314812; `trainer.evaluate()` after training gives 0.320968; both are equal with adamw_torch.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==4.57.6 accelerate==1.15.0 schedulefree==1.4.1
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


rows = [{"x": torch.full((4,), float(i % 3)), "labels": torch.tensor(float(i % 2))} for i in range(12)]


def losses(optim):
    args = TrainingArguments(
        optim, optim=optim, learning_rate=0.1, lr_scheduler_type="constant", max_steps=7, eval_strategy="steps",
        eval_steps=3, save_steps=3, load_best_model_at_end=True, per_device_train_batch_size=2, use_cpu=True,
        report_to="none", disable_tqdm=True,
    )
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        loaded = trainer.model(**batch)["loss"].item()
    return trainer.state.best_metric, loaded, trainer.evaluate()["eval_loss"]


for optim in ("adamw_torch", "schedule_free_adamw"):
    best, loaded, evaluated = losses(optim)
    print(f"{optim}: best_metric {best:.6f}, loss of the loaded weights {loaded:.6f}, trainer.evaluate() {evaluated:.6f}")
    assert (abs(best - evaluated) > 1e-4) == (optim == "schedule_free_adamw")
PYTHON
