"""Runs on two GPUs that go on with one, two and three: the numbers of the unbroken run, each sample once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.scripts.elastic_script import ROWS, Request, train
from tests.support.elastic import assert_same_end, logs, samples, weights

pytestmark = [needs_fake_gpu, pytest.mark.slow]

WINDOW = 12
"""Samples of an update step on any number of GPUs."""
INTERRUPTED = 2
"""The update step, in the middle of the first epoch, after which a run on two GPUs ends."""
SHARDS_OF_FSDP_1 = {"fsdp_config": {"version": 1, "state_dict_type": "SHARDED_STATE_DICT"}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DataParallel": ("ddp", {}),
    "DDP": ("ddp", {}),
    "DDP in bf16": ("ddp", {"bf16": True}),
    "FSDP 1": ("fsdp1", SHARDS_OF_FSDP_1),
    "FSDP 2": ("fsdp2", {}),
    "ZeRO-2 in bf16": ("zero_2", {"bf16": True}),
    "ZeRO-3": ("zero_3", {}),
    "FSDP 2, whole weights": ("fsdp2", {"fsdp_config": {"version": 2}}),
}
IN_FP16: dict[str, tuple[str, dict[str, Any]]] = {
    "FSDP 2 in fp16": ("fsdp2", {"fp16": True}),
    "FSDP 2 in fp16, whole weights": ("fsdp2", {"fp16": True, "fsdp_config": {"version": 2}}),
}
"""The same where transformers cannot resume: it reads the optimizer's states before the scale of the losses."""
"""How GPUs share a model → a strategy and more training arguments; ``DataParallel`` is that of a single process."""


def go_on(kind: str, folder: Path, gpus: int, *, until: int | None = None) -> None:
    """Train on ``gpus`` in ``folder``, from its last checkpoint on if there is one."""
    folder.mkdir(exist_ok=True)
    strategy, chosen = (KINDS | IN_FP16)[kind]
    fields = {"use_cpu": False, "gradient_accumulation_steps": WINDOW // (2 * gpus), **chosen}
    request = Request(str(folder), strategy=strategy, dropout=0.0, until=until, fields=fields)
    if kind == "DataParallel":
        run_on_gpu(train, request, devices=gpus)
    else:
        run_on_gpus(train, request, processes=gpus, devices=gpus)


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_as_the_unbroken_run(kind: str, gpus: int, tmp_path: Path) -> None:
    """Logs and weights are close, as sums over other GPUs are rounded otherwise; no sample is lost or repeated."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    go_on(kind, whole, 2)
    go_on(kind, part, 2, until=INTERRUPTED)
    go_on(kind, part, gpus)
    close = {"rtol": 2e-2, "atol": 2e-2} if "bf16" in kind else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(logs(part), logs(whole), **close)
    torch.testing.assert_close(weights(part), weights(whole), **close)
    assert samples(part) == samples(whole) == Counter(dict.fromkeys(range(ROWS), 2))


@pytest.mark.parametrize("kind", IN_FP16)
def test_resumed_in_fp16(kind: str, tmp_path: Path) -> None:
    """The scale of the losses and the sharded optimizer go on where they were: the same logs and weights."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    go_on(kind, whole, 2)
    for until in (INTERRUPTED, None):
        go_on(kind, part, 2, until=until)
    assert_same_end(part, whole)
