"""Lightning's callbacks on a GPU: a run with one that is resumed within an epoch ends as the run without a break."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    SpikeDetection,
    WeightAveraging,
)

from hf_compat import Trainer, TrainingArguments
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support.helpers import ListDataset, PlainModel, vector_rows

pytestmark = needs_fake_gpu

CALLBACKS: dict[str, Callable[[], Callback]] = {
    "early stopping": lambda: EarlyStopping("eval_loss", patience=9),
    "checkpoints": lambda: ModelCheckpoint(monitor="eval_loss", every_n_train_steps=1),
    "spikes": lambda: SpikeDetection(warmup=1, rtol=1e9),
    "average": WeightAveraging,
}


def ends(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the weights that a run with fp16 ends with, and those of one that goes on from its second checkpoint."""

    def weights(output: str, checkpoint: str | None = None) -> dict[str, Any]:
        args = TrainingArguments(
            str(folder / output),
            num_train_epochs=2,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=0.01,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            fp16=True,
            disable_tqdm=True,
            report_to="none",
        )
        torch.manual_seed(0)
        rows, keywords = ListDataset(vector_rows(14)), {"default_root_dir": str(folder / output / "files")}
        model, callbacks = PlainModel(), [CALLBACKS[name]()]
        trainer = Trainer(model, args, None, rows, rows, callbacks=callbacks, lightning=keywords)
        trainer.train(resume_from_checkpoint=checkpoint)
        return {key: value.cpu() for key, value in trainer.model.state_dict().items()}

    return [weights("whole"), weights("resumed", str(folder / "whole" / "checkpoint-2"))]


@pytest.mark.parametrize("name", CALLBACKS)
def test_resumed_within_an_epoch(name, tmp_path):
    """What it keeps in memory is on the GPU again."""
    whole, resumed = run_on_gpu(ends, tmp_path, name)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


def thawed(folder: Path, **fields: Any) -> dict[str, Any]:
    """Return the weights of this rank after a run whose second epoch begins to train the backbone."""
    model = PlainModel()
    model.backbone = model.body[0]
    fields |= {"num_train_epochs": 2, "save_strategy": "no", "disable_tqdm": True, "report_to": "none"}
    args = TrainingArguments(str(folder), **fields)
    callbacks = [BackboneFinetuning(unfreeze_backbone_at_epoch=1)]
    keywords = {"default_root_dir": str(folder)}
    Trainer(model, args, None, ListDataset(vector_rows(64)), callbacks=callbacks, lightning=keywords).train()
    return {key: value.cpu() for key, value in model.state_dict().items()}


def test_a_backbone_is_trained_by_all_ranks(tmp_path):
    """Gradients of what is unfrozen later are averaged too, though it was frozen when DDP was made."""
    first, second = run_on_gpus(thawed, tmp_path)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def warnings_without_search(folder: Path) -> list[str]:
    """Return the warnings of such a run in which DDP does not look for unused parameters."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thawed(folder, ddp_find_unused_parameters=False)
    return [str(each.message) for each in caught]


def test_a_backbone_that_each_rank_trains_alone(tmp_path):
    """Where DDP does not look for unused parameters, the run warns."""
    for found in run_on_gpus(warnings_without_search, tmp_path):
        assert any("Those that BackboneFinetuning unfreezes later would differ between ranks" in each for each in found)
