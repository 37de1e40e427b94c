#!/usr/bin/env bash
# With persistent workers the data of each epoch are those of the first: they never hear of `set_epoch`.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the Trainer calls `set_epoch` of a data set at the beginning of each epoch, in its own process. Workers have copies
#            from when they were started: at each epoch by default, once with `dataloader_persistent_workers=True`. A stream that
#            shuffles by its epoch then has one order, and a curriculum stays at its first lesson, without a message.
# Seen:      two epochs of eight rows: other orders, and one order with persistent workers. An epoch in shared memory mends it.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 numpy==2.4.6
run <<'PYTHON'
import numpy
import torch
from transformers import Trainer, TrainingArguments


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, shares):
        self.epoch = torch.zeros((), dtype=torch.long)
        if shares:
            self.epoch.share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)

    def __iter__(self):
        for number in numpy.random.default_rng(self.epoch.item()).permutation(8):
            yield {"x": float(number), "labels": 0.0}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []

    def forward(self, x, labels):
        self.seen += x.int().tolist()
        return {"loss": (self.weight * x).square().mean()}


def orders(persistent, shares=False):
    args = TrainingArguments("out", use_cpu=True, report_to="none", disable_tqdm=True, max_steps=8, save_strategy="no",
                             per_device_train_batch_size=2, dataloader_num_workers=1,
                             dataloader_persistent_workers=persistent, learning_rate=0.0)
    model = Model()
    Trainer(model, args, train_dataset=Stream(shares)).train()
    return model.seen[:8], model.seen[8:]


new, kept, shared = orders(False), orders(True), orders(True, shares=True)
print(f"new workers: {new}; persistent: {kept}; with shared memory: {shared}")
assert new[0] != new[1] and kept == (new[0], new[0]) and shared == new
PYTHON
