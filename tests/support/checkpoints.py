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

from hf_compat.checkpoint import distributed_files, flushing, names
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


def assert_same_checkpoints(found: Path, expected: Path) -> None:
    """Fail unless two runs' folders hold the same checkpoints, byte for byte but for times and random names."""
    steps = {path.name for path in expected.glob("checkpoint-*")}
    assert {path.name for path in found.iterdir()} == steps != set()
    for step in steps:
        ours, theirs = contents_of(found / step), contents_of(expected / step)
        assert sorted(ours) == sorted(theirs)
        for name, value in theirs.items():
            assert ours[name] == value, f"{step}/{name}"


def contents_of(checkpoint: Path) -> dict[str, Any]:
    """Return the bytes of the files of ``checkpoint``, of those with times or random names what they say besides."""
    paths = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    found: dict[str, Any] = {name: path.read_bytes() for name, path in paths.items()}
    marker = json.loads(found.pop(names.LIGHTNING_MARKER_NAME))
    assert set(marker["files"]) == set(found)
    assert marker[flushing.ALGORITHM] == {name: flushing.checksum(paths[name]) for name in found}
    for name, path in paths.items():
        if path.name == names.SHARDED_METADATA_NAME:
            metadata = distributed_files.read_metadata(path.parent)
            found[name] = (metadata.state_dict_metadata, metadata.planner_data, metadata.storage_data)
    if names.TRAINER_STATE_NAME in found:
        found[names.TRAINER_STATE_NAME] = _without_times(json.loads(found[names.TRAINER_STATE_NAME]))
    return {**found, names.TRAINING_ARGS_NAME: None, names.LIGHTNING_MARKER_NAME: marker["step"]}


def _without_times(state: dict[str, Any]) -> dict[str, Any]:
    state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name
    for line in state["log_history"]:
        for name in [name for name in line if name.endswith(("_runtime", "_per_second"))]:
            del line[name]
    return state


def whole_state(folder: Path) -> dict[str, Any]:
    """Return what is in a folder of torch's distributed checkpoint by name, of each tensor all values."""
    metadata = distributed_files.read_metadata(folder)
    state: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) if hasattr(entry, "size") else None
        for name, entry in metadata.state_dict_metadata.items()
    }
    distributed_files.load(state, folder, metadata)
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in state.items()}


def cut(path: Path) -> None:
    """Leave a file as a write does that was cut off: without its last 7 bytes."""
    path.write_bytes(path.read_bytes()[:-7])
