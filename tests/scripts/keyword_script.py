"""Two processes with keywords of ``lightning.Trainer``: each writes what it saw to ``<folder>/<rank>.json``."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DistributedSampler

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.support.helpers import ListDataset, PlainModel, vector_rows

CLIPS = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
EVERYTHING = CLIPS | {
    "val_check_interval": 0.5,
    "check_val_every_n_epoch": 2,
    "num_sanity_val_steps": 1,
    "min_epochs": 2,
    "limit_train_batches": 4,
    "reload_dataloaders_every_n_epochs": 1,
    "inference_mode": True,
}


class Stops(TrainerCallback):
    """Asks for the end of training at every update step."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


class Checks(pl.Callback):
    """Counts the batches of the sanity check."""

    def __init__(self):
        self.batches = 0

    def on_validation_batch_end(self, trainer, *_):
        self.batches += trainer.sanity_checking


class Reads(Trainer):
    """Notes the samples that this process trains on; each has its number as its first feature."""

    own_sampler = False

    def training_step(self, model, inputs, *rest):
        self.read = [*getattr(self, "read", []), *inputs["features"][:, 0].round(decimals=3).tolist()]
        return super().training_step(model, inputs, *rest)

    def _get_train_sampler(self, *given):
        return DistributedSampler(self.train_dataset) if self.own_sampler else super()._get_train_sampler(*given)


def trained(folder, keywords, *callbacks, own_sampler=False, **fields):
    torch.manual_seed(0)
    fields = {"num_train_epochs": 3, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2} | fields
    args = TrainingArguments(
        str(folder), use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no", logging_steps=1, **fields
    )
    rows = [{**row, "features": [index / 10, *row["features"][1:]]} for index, row in enumerate(vector_rows(24))]
    trainer = Reads(
        PlainModel(dropout=0.3),
        args,
        train_dataset=ListDataset(rows),
        eval_dataset=ListDataset(vector_rows(10, seed=1)),
        callbacks=list(callbacks),
        lightning=keywords,
    )
    trainer.own_sampler = own_sampler
    trainer.train()
    return trainer


def facts(trainer):
    history = trainer.state.log_history
    return {
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "norms": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
        "evaluated_at": [entry["step"] for entry in history if "eval_loss" in entry],
        "weights": [value.sum().item() for value in trainer.model.state_dict().values()],
        "read": trainer.read,
    }


def main(folder):
    checks = Checks()
    everything = trained(folder / "everything", EVERYTHING, Stops(), checks)
    plain = trained(folder / "plain", CLIPS | {"limit_train_batches": 4, "max_epochs": 2}, num_train_epochs=2.0)
    by_time = {"val_check_interval": timedelta(0), "fast_dev_run": False}
    found = {
        "everything": facts(everything) | {"checked": checks.batches},
        "plain": facts(plain),
        "development": facts(trained(folder / "development", {"fast_dev_run": 2})),
        "by time": facts(trained(folder / "time", by_time, max_steps=3)),
        "own sampler": facts(
            trained(folder / "own", {"use_distributed_sampler": False}, own_sampler=True, num_train_epochs=2)
        ),
    }
    (folder / f"{everything.args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
