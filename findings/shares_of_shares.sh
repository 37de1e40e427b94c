#!/usr/bin/env bash
# A stream that was split by rank is split once more by the Trainer: with two ranks half of it is never trained on.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, datasets 5.2.0; Python 3.11 on a CPU
# Behaviour: rank 0 reads an `IterableDataset` for all ranks, and hands the others their batches. After
#            `split_dataset_by_node` it reads its own share; that of the others is read by nobody. No message says so. The
#            same with litdata's `StreamingDataset` and others that look up the rank themselves.
# Seen:      two ranks and two epochs over 16 samples: 0 to 7 were trained on twice, 8 to 15 never. Without the split all
#            16 were.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0
cat > train.py <<'PYTHON'
import json
import os
import sys

import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x):
        self.seen += x.flatten().int().tolist()
        return {"loss": self.layer(x).sum()}


rank = int(os.environ["RANK"])
stream = Dataset.from_dict({"x": [[float(number)] for number in range(16)]}).to_iterable_dataset(num_shards=2)
if sys.argv[1] == "split":
    stream = split_dataset_by_node(stream, rank=rank, world_size=2)
args = TrainingArguments("out", use_cpu=True, ddp_backend="gloo", report_to="none", save_strategy="no", disable_tqdm=True,
                         per_device_train_batch_size=2, max_steps=4, ddp_find_unused_parameters=False)
model = Model()
Trainer(model, args, train_dataset=stream.with_format("torch")).train()
with open(f"{sys.argv[1]}{rank}.json", "w") as file:
    json.dump(model.seen, file)
PYTHON
for name in whole split; do
    GLOO_SOCKET_IFNAME=lo venv/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 train.py $name
done
run <<'PYTHON'
import json

seen = {name: sorted(sum((json.load(open(f"{name}{rank}.json")) for rank in (0, 1)), [])) for name in ("whole", "split")}
print(f"trained on: the whole stream {seen['whole']}, split by rank {seen['split']}")
assert seen["whole"] == [*range(16)]
assert seen["split"] == sorted(2 * [*range(8)])
PYTHON
