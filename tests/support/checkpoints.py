"""Checkpoint folders for tests: small hand-made ones, and real ones written by transformers' own Trainer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.helpers import ListDataset, PadCollator, token_rows


def small_checkpoint(folder: Path, *, value: float = 0.0) -> Path:
    """Write a folder with all that resuming needs, without hf_compat's marker, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.full((4,), value)}, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"value": torch.full((4,), value)}, folder / name)
    (folder / "trainer_state.json").write_text(json.dumps({"value": value}))
    return folder


def upstream_trainer(model: nn.Module, folder: Path, **fields: Any) -> Any:
    """Return transformers' Trainer for ``model``, of token rows, that writes into ``folder``."""
    from transformers import Trainer, TrainingArguments

    arguments = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "logging_steps": 1, **fields}
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, dataloader_pin_memory=False, **arguments
    )
    return Trainer(model, args, data_collator=PadCollator(), train_dataset=ListDataset(token_rows(8)))


def train_upstream(model: nn.Module, folder: Path, **fields: Any) -> Any:
    """Train ``model`` with transformers' Trainer and return it; it wrote checkpoint-1 and checkpoint-2."""
    trainer = upstream_trainer(model, folder, **fields)
    trainer.train()
    return trainer


class Trap:
    """Creates ``path`` when it is unpickled without care."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))
