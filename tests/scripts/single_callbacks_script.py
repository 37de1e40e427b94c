"""A script of someone who uses Lightning alone, with hf_compat's single callbacks; started again it goes on.

``python single_callbacks_script.py FOLDER`` prints ``step N`` after each update step, and at the end ``done``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from hf_compat import default_data_collator, get_last_checkpoint
from hf_compat.lightning import (
    GradientNorm,
    HFCheckpointIO,
    HFCheckpoints,
    PreemptionSaving,
    ResumableLoader,
    UpdateStepLogs,
)
from tests.support.helpers import ListDataset, PlainModel, vector_rows

STEPS = 16
"""26 rows are seven batches of four, so three windows of two and one of one, for four epochs."""


class Classifier(lightning.LightningModule):
    """A module of one's own, with dropout, a schedule and Lightning's own optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.model = PlainModel()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch)["loss"], batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Reports(lightning.Callback):
    """Says how far the run is."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        print(f"step {trainer.global_step}", flush=True)


def loader(rows: list[Any], **settings: Any) -> DataLoader[Any]:
    return DataLoader(ListDataset(rows), batch_size=4, collate_fn=default_data_collator, **settings)


def train(
    folder: Path, *others: lightning.Callback, timeout: float | None = 20.0, **settings: Any
) -> tuple[lightning.Trainer, HFCheckpoints]:
    """Train in ``folder``, from its newest checkpoint if there is one."""
    torch.manual_seed(0)
    module, out = Classifier(), folder / "out"
    checkpoints = HFCheckpoints(out, **{"every_n_steps": 2, "save_total_limit": 2, "monitor": "val_loss", **settings})
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=4,
        accumulate_grad_batches=2,
        callbacks=[*others, UpdateStepLogs(3), GradientNorm(3), checkpoints, PreemptionSaving(checkpoints, timeout)],
        plugins=[HFCheckpointIO()],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = ResumableLoader(loader(vector_rows(26), shuffle=True))
    newest = get_last_checkpoint(out) if out.is_dir() else None
    trainer.fit(module, batches, loader(vector_rows(9, seed=1)), ckpt_path=newest)
    return trainer, checkpoints


if __name__ == "__main__":
    train(Path(sys.argv[1]), Reports())
    print("done", flush=True)
