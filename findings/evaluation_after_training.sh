#!/usr/bin/env bash
# What `evaluate` logs after `train` is not in ClearML.
#
# Versions:  torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, clearml 2.1.12; Python 3.11 on a CPU
# Behaviour: with `report_to="clearml"` the task is closed at the end of `train`; later logs are dropped without a message.
#            A task that the script has begun stays open, and has them.
# Seen:      no value of `evaluate` in the offline session; one where the script calls `Task.init` first.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 clearml==2.1.12
export CLEARML_OFFLINE_MODE=1 CLEARML_LOG_MODEL=FALSE CLEARML_CONFIG_FILE=$folder/clearml.conf
echo "sdk.development.report_use_subprocess: false" >clearml.conf
cat >train.py <<'PYTHON'
import sys

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


if sys.argv[1] == "own":
    from clearml import Task

    Task.init(project_name="mine", task_name="mine", auto_connect_frameworks=False)
rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(8)]
args = TrainingArguments("out", max_steps=2, logging_steps=1, save_strategy="no", per_device_train_batch_size=2,
                         use_cpu=True, report_to="clearml", disable_tqdm=True)
trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows)
trainer.train()
trainer.evaluate()
PYTHON
for kind in transformers own; do
    CLEARML_CACHE_DIR=$folder/$kind venv/bin/python train.py $kind
done
run <<'PYTHON'
import json
import zipfile
from pathlib import Path


def titles(folder):
    (path,) = Path(folder).rglob("offline-*.zip")
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("metrics.jsonl").decode().splitlines()
    return {(event["metric"], event["variant"]) for line in lines for event in json.loads(line)}


closed, own = titles("transformers"), titles("own")
print("with the task of transformers:", sorted(closed), "with the script's:", sorted(own), sep="\n")
assert ("train", "loss") in closed and ("train", "loss") in own
assert ("eval", "loss") not in closed
assert ("eval", "loss") in own
PYTHON
