"""Tells what code beside the Trainer reads of accelerate: ``accelerate_state.py <ours|upstream> <folder> [way]``.

``devices`` and ``spawn`` have the Trainer of hf_compat start its processes itself, ``fsdp`` shards the model.
"""

import importlib
import json
import logging
import sys
from pathlib import Path

import torch
from accelerate.logging import get_logger
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object, set_seed

from tests.support.helpers import ListDataset, PlainModel, vector_rows

which, folder, way = (*sys.argv[1:], "")[:3]
library = importlib.import_module("hf_compat" if which == "ours" else "transformers")
LIGHTNING = {"devices": {"devices": 2}, "spawn": {"devices": 2, "strategy": "ddp_spawn"}}
FIELDS = {"fsdp": {"fsdp": "full_shard", "fsdp_config": {"version": 2, "reshard_after_forward": True}}}


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def facts():
    """Return the state of the process, of the run, and what accelerate's functions make of them."""
    partial, kept = PartialState(), Kept()
    logger = logging.getLogger("told")
    logger.addHandler(kept)
    adapter = get_logger("told", log_level="INFO")
    adapter.info("by the main process")
    adapter.info("by all", main_process_only=False)
    logger.removeHandler(kept)
    set_seed(7, device_specific=True)
    told = {"logged": kept.lines, "seed": torch.initial_seed(), "gathered": gather_object([partial.process_index])}
    with partial.main_process_first():
        told["is_main_process"] = partial.is_main_process
    states = (("process", PartialState), ("run", AcceleratorState))
    told |= {name: {key: str(value) for key, value in kind._shared_state.items()} for name, kind in states}
    return told


class Tells(library.TrainerCallback):
    """Writes the facts at the beginning of training."""

    def on_train_begin(self, args, state, control, **kwargs):
        found = facts() | {"distributed_state": str(args.distributed_state)}
        found["mixed_precision"] = AcceleratorState().mixed_precision
        Path(folder, f"{which}-{args.process_index}.json").write_text(json.dumps(found))


def main():
    """Train one update step."""
    more = {"lightning": LIGHTNING[way]} if way in LIGHTNING else {}
    fields = {"bf16": True, "max_steps": 1, "save_strategy": "no", **FIELDS.get(way, {})}
    args = library.TrainingArguments(output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True, **fields)
    get_logger("told").info("may be called as soon as there are arguments")
    rows = ListDataset(vector_rows(8))
    library.Trainer(PlainModel(), args, train_dataset=rows, callbacks=[Tells()], **more).train()


if __name__ == "__main__":
    main()
