"""Train on the ranks of a launcher, as ``argv[1]`` says: by ``train``, ``to_lightning``, or pieces ``by_hand``.

Rank 0 writes what the run ends with to the file ``argv[2]``, the checkpoints lie beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch

from hf_compat import Trainer, TrainingArguments, to_lightning
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.support.helpers import ListDataset, PlainModel, vector_rows

TRAIN, HELD_OUT = ListDataset(vector_rows(26)), ListDataset(vector_rows(9, seed=1))


def run(way: str, args: TrainingArguments) -> tuple[Trainer, dict[str, float], np.ndarray]:
    """Return the Trainer at the end of a run, and then its metrics and predictions."""
    torch.manual_seed(0)
    model = PlainModel()
    if way == "by_hand":
        ours = callbacks(args)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        strategy = {"accelerator": "cpu", "devices": args.launch.local_world_size, "strategy": "ddp"}
        lightning_trainer = lightning.Trainer(max_epochs=-1, callbacks=ours, **quiet, **strategy)
        pieces = HFModule(model), HFDataModule(args, TRAIN, HELD_OUT, HELD_OUT)
        lightning_trainer.fit(pieces[0], datamodule=pieces[1])
        return ours[-1].hf_trainer, *evaluated(lightning_trainer, *pieces)
    trainer = Trainer(model, args, train_dataset=TRAIN, eval_dataset=HELD_OUT)
    if way == "train":
        trainer.train()
        return trainer, trainer.evaluate(), trainer.predict(HELD_OUT).predictions
    lightning_trainer, module, data = to_lightning(trainer)
    lightning_trainer.fit(module, datamodule=data)
    data.test_dataset = HELD_OUT
    return trainer, *evaluated(lightning_trainer, module, data)


def evaluated(trainer: lightning.Trainer, module: HFModule, data: HFDataModule) -> tuple[dict[str, float], np.ndarray]:
    """Return metrics and predictions of a person's calls."""
    [metrics] = trainer.validate(module, datamodule=data, verbose=False)
    return metrics, torch.cat(trainer.predict(module, datamodule=data)).numpy()


def ended(trainer: Trainer, metrics: dict[str, float], predictions: np.ndarray) -> dict[str, Any]:
    """Return logs and metrics without times, weights and predictions."""
    times = ("runtime", "per_second")
    logs = [{k: v for k, v in row.items() if not k.endswith(times)} for row in trainer.state.log_history]
    metrics = {k: v for k, v in metrics.items() if not k.endswith(times)}
    weights = trainer.model.state_dict()
    return {"logs": logs, "weights": weights, "metrics": metrics, "predictions": predictions.tolist()}


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
    end = run(way, args)
    if args.process_index == 0:
        torch.save(ended(*end), file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
