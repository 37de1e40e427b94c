"""On GPUs our Trainer and transformers' do the same, to the last bit: logs, weights, states, random numbers, files.

A scenario is a row of ``GPU_SCENARIOS``, or one of the CPU's in ``tests.support.scenarios``; its name goes into a group
here, which runs in one process, or one launch of two. ``PARITY_SUBJECT=upstream`` compares transformers with itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import transformers
from packaging.version import Version

from tests.gpu.comparing import differing
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support.parity import Which

pytestmark = needs_fake_gpu

SUBJECT: Which = os.environ.get("PARITY_SUBJECT", "ours")  # type: ignore[assignment]

ONE_GPU = {
    "precision": "fp32 bf16_on_gpu fp16 fp16_overflow_fused fp16_overflow_plain tf32_on tf32_off",
    "loading and memory": "pinned workers memory_of_the_gpu memory_runs_out best_checkpoint",
    "resuming": "resume_fp16 resume_bf16",
}
"""Quick groups of scenarios on one GPU."""
ONE_GPU_SLOW = {
    "evaluation in half precision": "bf16_full_evaluation fp16_full_evaluation",
    "compiled": "compiled_eager compiled_aot_eager compiled_in_bf16",
    "methods": "emptied_cache noisy_embeddings checkpointed_activations pageable fp16_overflow_accumulating",
    "resuming": "resume_fp32 resume_with_workers_of_the_gpu",
}
TWO_GPUS = {
    "ddp": "ddp_fp32 ddp_fp16",
    "fsdp": "fsdp2_bf16_full fsdp2_fp16_full fsdp1_bf16_sharded",
}
"""Quick groups of scenarios on two GPUs."""
TWO_GPUS_SLOW = {
    "ddp": "ddp_bf16 ddp_in_8_bits ddp_in_8_bits_on_its_gpu ddp_quantized",
    "fsdp 1": "fsdp1_fp32_full fsdp1_fp32_sharded fsdp1_bf16_full fsdp1_fp16_full fsdp1_fp16_sharded "
    "resume_fsdp1_fp32 resume_fsdp1_bf16 resume_fsdp1_fp16",
    "fsdp 2": "fsdp2_fp32_full fsdp2_fp32_sharded fsdp2_bf16_sharded fsdp2_fp16_sharded "
    "resume_fsdp2_fp32 resume_fsdp2_bf16",
}
"""transformers cannot resume FSDP 2 with fp16: it reads the optimizer before the scaler."""
CROSSWISE = "resume_fp32 resume_bf16 resume_fp16"
SINCE_5 = ("fsdp", "resume_fsdp", "tf32_", "memory_of_the_gpu")
"""Beginnings of the names of scenarios that are not compared with transformers 4.

It reads no ``state_dict_type``, its FSDP 2 has other numbers in bf16, it sets the older of torch's switches for TF32
alone, and it holds the last batch to the end of a run.
"""
IS_5 = Version(transformers.__version__) >= Version("5")


def groups(quick: dict[str, str], slow: dict[str, str]) -> list[object]:
    """Return a parameter for each group, marked slow if it is."""
    return [
        *(pytest.param(names.split(), id=name) for name, names in quick.items()),
        *(pytest.param(names.split(), id=f"{name}, slow", marks=pytest.mark.slow) for name, names in slow.items()),
    ]


def compared(names: list[str]) -> list[str]:
    """Return those of ``names`` that are compared with the installed release; without any the test is skipped."""
    found = [name for name in names if IS_5 or not name.startswith(SINCE_5)]
    if not found:
        pytest.skip("these scenarios are compared with transformers 5 alone")
    return found


def check(found: dict[str, str]) -> None:
    """Fail with all that differs."""
    assert "\n\n".join(f"{name}:\n{text}" for name, text in found.items() if text) == ""


@pytest.mark.parametrize("names", groups(ONE_GPU, ONE_GPU_SLOW))
def test_one_gpu(names: list[str], tmp_path: Path):
    """One process with one GPU does as transformers."""
    check(run_on_gpu(differing, compared(names), tmp_path, subject=SUBJECT))


@pytest.mark.parametrize("names", groups(TWO_GPUS, TWO_GPUS_SLOW))
def test_two_gpus(names: list[str], tmp_path: Path):
    """Two ranks that exchange over NCCL do as transformers, and each sees what its counterpart sees."""
    for found in run_on_gpus(differing, compared(names), tmp_path, subject=SUBJECT):
        check(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "starter"),
    [
        pytest.param("ours", "upstream", id="ours resumes theirs"),
        pytest.param("upstream", "ours", id="theirs resumes ours"),
    ],
)
def test_resuming_the_other_library(subject: Which, starter: Which, tmp_path: Path):
    """A checkpoint of one library is as good as one of the other, on one GPU and on two."""
    check(run_on_gpu(differing, CROSSWISE.split(), tmp_path / "one", subject=subject, starter=starter))
    names = ["ddp_fp16", "resume_fsdp1_bf16", "resume_fsdp2_bf16"]
    for found in run_on_gpus(differing, compared(names), tmp_path / "two", subject=subject, starter=starter):
        check(found)
