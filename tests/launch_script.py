"""A short training that knows nothing of how it was started; each process writes down what it saw.

Arguments: an output folder, how many devices Lightning is to start processes for, 0 for none, and perhaps a config of
DeepSpeed.
"""

import json
import sys
from pathlib import Path

from helpers import ListDataset, PlainModel, vector_rows

from hf_compat import Trainer, TrainingArguments

folder, devices = Path(sys.argv[1]), int(sys.argv[2])
args = TrainingArguments(
    str(folder / "output"),
    num_train_epochs=2,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    use_cpu=True,
    disable_tqdm=True,
    report_to="none",
    deepspeed=sys.argv[3] if len(sys.argv) > 3 else None,
)
with args.main_process_first(local=False):
    prepared = folder / "prepared"
    assert prepared.exists() or args.process_index == 0
    prepared.touch()
trainer = Trainer(
    PlainModel(dropout=0.0),
    args,
    train_dataset=ListDataset(vector_rows(16)),
    eval_dataset=ListDataset(vector_rows(7, seed=1)),
    lightning={"devices": devices, "strategy": "ddp"} if devices else None,
)
trainer.train()
seen = {
    "world_size": args.world_size,
    "local_rank": args.local_process_index,
    "should_save": args.should_save,
    "nodes": trainer.lightning_trainer.num_nodes,
    "wrapped": type(trainer.model_wrapped).__name__,
    "steps": trainer.state.global_step,
    "losses": [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry],
    "weights": sum(weight.double().abs().sum().item() for weight in trainer.model.parameters()),
}
(folder / f"{args.process_index}.json").write_text(json.dumps(seen))
