"""Runs on two GPUs that go on with one and three: the numbers of the unbroken run, each sample once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support import helpers

pytestmark = [needs_fake_gpu, pytest.mark.slow]

ROWS, SAMPLES, EPOCHS = 36, 12, 2
"""Of the data set, of an update step on any number of GPUs, and of a run."""
INTERRUPTED = 2
"""The update step, in the middle of the first epoch, after which a run on two GPUs ends."""
SHARDED: dict[str, Any] = {"fsdp": "full_shard", "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
KINDS: dict[str, dict[str, Any]] = {
    "DataParallel": {},
    "DDP": {},
    "DDP in bf16": {"bf16": True},
    "FSDP 1": SHARDED | {"fsdp_config": {"version": 1, "state_dict_type": "SHARDED_STATE_DICT"}},
    "FSDP 2": SHARDED,
    "FSDP 2, whole weights": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
}
"""How GPUs share a model → training arguments."""


def train(folder: Path, fields: dict[str, Any], gpus: int, *, until: int | None = None) -> dict[str, Any]:
    """Train on ``gpus`` from the newest checkpoint in ``folder``; return logged losses, weights and samples."""
    from hf_compat import Trainer, TrainerCallback, TrainingArguments

    seen: list[int] = []
    rows = [{**row, "number": number} for number, row in enumerate(helpers.vector_rows(ROWS))]

    class Counts(Trainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
            seen.extend(inputs.pop("number").tolist())
            return super().training_step(model, inputs, *args)

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == until

    torch.manual_seed(0)
    args = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=SAMPLES // (2 * gpus),
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **fields,
    )
    data = helpers.ListDataset(rows)
    trainer = Counts(helpers.PlainModel(dropout=0.0), args, train_dataset=data, callbacks=[Ends()])
    trainer.train(resume_from_checkpoint="auto")
    weights = {name: item.cpu() for name, item in trainer.accelerator.get_state_dict(trainer.model_wrapped).items()}
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"losses": losses, "weights": weights, "samples": seen}


def train_as(kind: str, folder: Path, gpus: int, **chosen: Any) -> list[dict[str, Any]]:
    """Return what :func:`train` returned in each process."""
    if kind == "DataParallel":
        return [run_on_gpu(train, folder, KINDS[kind], gpus, devices=gpus, **chosen)]
    return run_on_gpus(train, folder, KINDS[kind], gpus, processes=gpus, devices=gpus, **chosen)


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_as_the_unbroken_run(kind: str, gpus: int, tmp_path: Path) -> None:
    """Losses and weights are close, as sums over other GPUs are rounded otherwise; no sample is lost or repeated."""
    whole = train_as(kind, tmp_path / "whole", 2)
    begun = train_as(kind, tmp_path / "part", 2, until=INTERRUPTED)
    ended = train_as(kind, tmp_path / "part", gpus)
    close = {"rtol": 2e-2, "atol": 2e-2} if "bf16" in kind else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(ended[0]["losses"], whole[0]["losses"], **close)
    torch.testing.assert_close(ended[0]["weights"], whole[0]["weights"], **close)
    samples = Counter(number for process in (*begun, *ended) for number in process["samples"])
    assert samples == Counter(dict.fromkeys(range(ROWS), EPOCHS))
