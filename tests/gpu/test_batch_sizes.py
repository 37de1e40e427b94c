"""``auto_find_batch_size`` of transformers with FSDP 1, which is why it is refused here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.gpu.harness import needs_fake_gpu, run_on_gpus
from tests.scripts.sharded_common import llama
from tests.support import helpers

pytestmark = [needs_fake_gpu, pytest.mark.slow]


class OutOfMemoryTrainer(transformers.Trainer):
    """Runs out of memory ahead of the forward pass with more than three samples."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *given: Any, **named: Any) -> Any:
        """Raise as torch does, or return the loss."""
        if len(inputs["input_ids"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().compute_loss(model, inputs, *given, **named)


def error_of_transformers(folder: Path) -> str:
    """Return the error with which a run of transformers ends after all ranks have run out of memory."""
    args = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=5,
        auto_find_batch_size=True,
        max_steps=3,
        fsdp="full_shard",
        fsdp_config={"version": 1, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
    )
    row = {"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}
    trainer = OutOfMemoryTrainer(llama(), args, train_dataset=helpers.ListDataset([row] * 60))
    try:
        trainer.train()
    except RuntimeError as error:
        return str(error)
    return ""


def test_fsdp_1_cannot_begin_again(tmp_path):
    """Even where all ranks run out of memory before any layer, the next attempt of transformers fails."""
    assert run_on_gpus(error_of_transformers, tmp_path) == ["'weight' must be 2-D"] * 2
