#!/usr/bin/env bash
# A run on a stream of mosaicml-streaming that is resumed in its second epoch has the samples of the first.
#
# Versions:  torch 2.13.0, numpy 2.4.6, transformers 5.24.0, accelerate 1.15.0, mosaicml-streaming 0.13.0; Python 3.11 on a
#            CPU
# Behaviour: a `StreamingDataset` shuffles by the number of its pass, which it counts in the process. The Trainer skips
#            batches, but passes before them it does not make: the new process reads its first pass, in that one's order.
#            The `StreamingDataset` has a state that could be saved, and the Trainer does not ask for it.
# Seen:      a run resumed in its first epoch went on with the batches of the unbroken run; one resumed in the second with
#            those of the first, so that samples were trained on twice in this epoch, and others not.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0
# Without its clients of cloud stores, and with a torchvision of two names, which only its data sets of images need.
more() { venv/bin/pip install --quiet --no-compile --disable-pip-version-check "$@"; }
more brotli==1.2.1 catalogue==2.0.10 matplotlib==3.11.2 python-snappy==0.7.3 xxhash==4.1.0 zstd==1.5.7.2
more --no-deps mosaicml-streaming==0.13.0
mkdir -p names/torchvision/transforms
echo "VisionDataset = object" > names/torchvision/datasets.py
echo "to_tensor = None" > names/torchvision/transforms/functional.py
touch names/torchvision/__init__.py names/torchvision/transforms/__init__.py
run <<'PYTHON'
import subprocess
import sys

sys.path.append("names")
from streaming import MDSWriter

with MDSWriter(out="data", columns={"x": "int"}, size_limit=256) as writer:
    for number in range(16):
        writer.write({"x": number})

program = """
import sys

import torch
from transformers import Trainer, TrainingArguments

sys.path.append("names")
from streaming import StreamingDataset


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.flatten().int().tolist())
        return {"loss": self.layer(x).sum()}


model = Model()
args = TrainingArguments("out", use_cpu=True, report_to="none", save_steps=3, disable_tqdm=True, max_steps=12,
                         per_device_train_batch_size=2, remove_unused_columns=False)
stream = StreamingDataset(local="data", shuffle=True, batch_size=2)
collate = lambda rows: {"x": torch.tensor([[float(row["x"])] for row in rows])}
Trainer(model, args, train_dataset=stream, data_collator=collate).train(resume_from_checkpoint=sys.argv[1] or None)
print("seen", model.seen)
"""


def seen(checkpoint=""):
    lines = subprocess.run([sys.executable, "-c", program, checkpoint], check=True, stdout=subprocess.PIPE, text=True)
    return eval(lines.stdout.rpartition("seen ")[2])


unbroken, first, second = seen(), seen("out/checkpoint-3"), seen("out/checkpoint-9")
print(f"unbroken: {unbroken[:8]}, then {unbroken[8:]}")
print(f"resumed after batch 9: {second}")
assert first == unbroken[3:]
assert second == unbroken[1:4] != unbroken[9:]
PYTHON
