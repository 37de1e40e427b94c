"""A short training that knows nothing of how it was started; each process writes down what it saw.

Options: ``--folder``, and in ``--start`` how many devices Lightning is to start processes for, 0 for none; and all of
``TrainingArguments``, among them the ``--local_rank`` that some launchers add.
"""

import json
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_compat import HfArgumentParser, Trainer, TrainingArguments
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import LaunchedEnvironment
from tests.support.helpers import ListDataset, PlainModel, vector_rows


@dataclass
class Options:
    folder: str
    start: int = 0
    rank: int | None = None
    """Number of this process of two, told by a cluster environment of the script's own."""
    port: int = 0


FIXED = (
    *("--num_train_epochs", "2", "--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2"),
    *("--eval_strategy", "epoch", "--save_strategy", "epoch", "--use_cpu", "--disable_tqdm", "True"),
    *("--report_to", "none", "--output_dir", "output"),
)
options, args = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses([*FIXED, *sys.argv[1:]])
folder = Path(options.folder)
lightning = {"devices": options.start, "strategy": "ddp"} if options.start else {}
if options.rank is not None:
    place = Launch("cluster", 2, options.rank, options.rank, 2, port=options.port)
    lightning = {"plugins": [LaunchedEnvironment(place)]}
with args.main_process_first(local=False):
    prepared = folder / "prepared"
    assert prepared.exists() or args.process_index == 0
    prepared.touch()
torch.manual_seed(0)
trainer = Trainer(
    PlainModel(dropout=0.0),
    args,
    train_dataset=ListDataset(vector_rows(16)),
    eval_dataset=ListDataset(vector_rows(7, seed=1)),
    lightning=lightning,
)
trainer.train()
logging.getLogger("hf_compat.script").info("trained, %s", "in detail")
logging.getLogger("hf_compat.script").error("nothing went wrong")
warnings.warn("mind this", stacklevel=1)
seen = {
    "world_size": args.world_size,
    "local_rank": args.local_process_index,
    "should_save": args.should_save,
    "should_log": args.should_log,
    "level": logging.getLevelName(logging.getLogger("hf_compat").getEffectiveLevel()),
    "nodes": trainer.lightning_trainer.num_nodes,
    "wrapped": type(trainer.model_wrapped).__name__,
    "steps": trainer.state.global_step,
    "losses": [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry],
    "weights": sum(weight.double().abs().sum().item() for weight in trainer.model.parameters()),
}
(folder / f"{args.process_index}.json").write_text(json.dumps(seen))
