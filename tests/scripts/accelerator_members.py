"""Asks every member of ``trainer.accelerator``: ``accelerator_members.py <ours|upstream> <folder> <fp32|bf16>``."""

import importlib
import json
import sys
from pathlib import Path

import torch

from tests.support.accelerator_members import answers
from tests.support.helpers import ListDataset, PlainModel, vector_rows

which, folder, precision = sys.argv[1:]
torch.set_num_threads(1)
library = importlib.import_module("hf_compat" if which == "ours" else "transformers")
args = library.TrainingArguments(
    output_dir=folder, use_cpu=True, bf16=precision == "bf16", report_to="none", disable_tqdm=True
)
trainer = library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
found = answers(trainer.accelerator, Path(folder, which))
Path(folder, f"{which}-{args.process_index}.json").write_text(json.dumps(found))
trainer.accelerator.end_training()
assert not torch.distributed.is_initialized()
