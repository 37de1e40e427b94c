#!/usr/bin/env bash
# Balanced batches do not depend on the seed.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: with `train_sampling_strategy="batch_rebalance"` a run has the same batches whatever `seed` and `data_seed`
#            are, as the sampler's own seed is always 42; runs that differ in the seed alone are no independent samples.
#            The size of a batch is that of `per_device_train_batch_size` on average alone, also on one device.
# Seen:      the same batches for three pairs of seeds; sizes 2, 2, 3, 1, 1, 3 where 2 was asked for.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, input_ids, labels):
        self.seen.append(sorted(labels.tolist()))
        return {"loss": (self.weight - 1).square()}


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": ids, "labels": torch.tensor([row["labels"] for row in rows])}


rows = [{"input_ids": [1] * (1 + i * i), "labels": i} for i in range(12)]


def batches(strategy, **seeds):
    args = TrainingArguments(
        "out", train_sampling_strategy=strategy, num_train_epochs=1, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        remove_unused_columns=False, **seeds,
    )
    trainer = Trainer(Model(), args, train_dataset=rows, data_collator=collate)
    trainer.train()
    return trainer.model.seen


for strategy in ("random", "batch_rebalance"):
    runs = [batches(strategy, **seeds) for seeds in ({"seed": 1}, {"seed": 2}, {"seed": 1, "data_seed": 7})]
    sizes = [len(batch) for batch in runs[0]]
    print(f"{strategy}: same batches with other seeds: {runs[0] == runs[1] == runs[2]}; batches of 2 were {sizes}")
    assert (runs[0] == runs[1] == runs[2]) == (strategy == "batch_rebalance")
    assert (set(sizes) != {2}) == (strategy == "batch_rebalance")
PYTHON
