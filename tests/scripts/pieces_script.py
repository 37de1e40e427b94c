"""Train on the ranks of a launcher, as ``argv[1]`` says: by ``train``, ``to_lightning``, or pieces ``by_hand``.

Rank 0 writes what the run ends with to the file ``argv[2]``, the checkpoints lie beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch

from hf_compat import Trainer, TrainingArguments, to_lightning
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.support.helpers import ListDataset, PlainModel, vector_rows

TRAIN, HELD_OUT = ListDataset(vector_rows(26)), ListDataset(vector_rows(9, seed=1))


def run(way: str, args: TrainingArguments) -> Trainer:
    """Return the Trainer at the end of a run."""
    torch.manual_seed(0)
    model = PlainModel()
    if way == "by_hand":
        ours = callbacks(args)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        strategy = {"accelerator": "cpu", "devices": args.launch.local_world_size, "strategy": "ddp"}
        lightning_trainer = lightning.Trainer(max_epochs=-1, callbacks=ours, **quiet, **strategy)
        lightning_trainer.fit(HFModule(model), datamodule=HFDataModule(args, TRAIN, HELD_OUT))
        return ours[-1].hf_trainer
    trainer = Trainer(model, args, train_dataset=TRAIN, eval_dataset=HELD_OUT)
    if way == "train":
        trainer.train()
    else:
        lightning_trainer, module, data = to_lightning(trainer)
        lightning_trainer.fit(module, datamodule=data)
    return trainer


def ended(trainer: Trainer) -> dict[str, Any]:
    """Return logs without times, and weights."""
    times = ("runtime", "per_second")
    logs = [{k: v for k, v in row.items() if not k.endswith(times)} for row in trainer.state.log_history]
    return {"logs": logs, "weights": trainer.model.state_dict()}


def main(way: str, file: Path) -> None:
    args = TrainingArguments(
        str(file.parent / way),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
    )
    trainer = run(way, args)
    if args.process_index == 0:
        torch.save(ended(trainer), file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
