"""The count of update steps after which the loss scale of fp16 grows, in checkpoints of a sharded model."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

import hf_compat
from tests.gpu.harness import needs_fake_gpu, run_on_gpus
from tests.scripts.sharded_common import llama
from tests.support import helpers

pytestmark = needs_fake_gpu


def counted_in_a_step(folder: Path) -> dict[str, int]:
    """Return by how much the last of five update steps with SGD, which has no state, raises the count, by library."""
    found = {}
    for library in (transformers, hf_compat):
        output_dir = folder / library.__name__
        args = library.TrainingArguments(
            str(output_dir),
            max_steps=5,
            per_device_train_batch_size=1,
            optim="sgd",
            fp16=True,
            save_strategy="steps",
            save_steps=1,
            fsdp="full_shard",
            fsdp_config={"version": 2, "state_dict_type": "FULL_STATE_DICT"},
            disable_tqdm=True,
            report_to="none",
        )
        library.Trainer(llama(), args, train_dataset=helpers.ListDataset(helpers.token_rows(10))).train()
        before, after = (torch.load(output_dir / f"checkpoint-{step}" / "scaler.pt") for step in (4, 5))
        found[library.__name__] = after["_growth_tracker"] - before["_growth_tracker"]
    return found


def test_a_save_is_no_update_step(tmp_path):
    """Under FSDP 2 torch steps an optimizer without state before it saves that; transformers' scaler counts it too."""
    variables = {"FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}  # which transformers 4.57 reads
    for found in run_on_gpus(counted_in_a_step, tmp_path, variables=variables):
        assert found == {"transformers": 2, "hf_compat": 1}
