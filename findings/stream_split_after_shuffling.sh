#!/usr/bin/env bash
# A stream that is shuffled and then split trains on its validation rows from the second epoch on.
#
# Versions:  datasets 5.2.0, torch 2.13.0, transformers 5.24.0, accelerate 1.15.0; Python 3.11 on a CPU
# Behaviour: `stream.shuffle(seed=0)` divided by `take(n)` and `skip(n)` is two parts in the first epoch. `set_epoch`, which a
#            Trainer calls, has the stream shuffled anew before `skip`, which then leaves out other rows. Nobody tells the
#            validation stream, or is told. Split first, and shuffle the part for training.
# Seen:      of 8 validation rows of 40, none is trained on in the first epoch, and 7 in the second; none in both where
#            the stream is split before it is shuffled.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install datasets==5.2.0 torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
run <<'PYTHON'
import datasets
import torch
from transformers import Trainer, TrainingArguments, logging

logging.set_verbosity_error()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, row):
        self.seen += row.tolist()
        return {"loss": self.layer(row[:, None].float()).mean()}


def leaked(validation, training):
    held_out = {row["row"] for row in validation}
    model = Model()
    args = TrainingArguments("run", max_steps=8, per_device_train_batch_size=8, save_strategy="no", report_to="none",
                             use_cpu=True, disable_tqdm=True)
    Trainer(model, args, train_dataset=training).train()
    return len(held_out & set(model.seen[:32])), len(held_out & set(model.seen[32:]))


rows = datasets.Dataset.from_dict({"row": list(range(40))}).to_iterable_dataset(num_shards=4)
shuffled = rows.shuffle(seed=0, buffer_size=100)
after = leaked(shuffled.take(8), shuffled.skip(8))
before = leaked(rows.take(8), rows.skip(8).shuffle(seed=0, buffer_size=100))
print("validation rows trained on in each epoch, split after shuffling:", after, "before:", before)
assert after[0] == 0 and after[1] > 0
assert before == (0, 0)
PYTHON
