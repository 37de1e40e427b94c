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

from tests.gpu.comparing import differing, differing_in_background
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support.parity import Which

pytestmark = needs_fake_gpu

SUBJECT: Which = os.environ.get("PARITY_SUBJECT", "ours")  # type: ignore[assignment]

ONE_GPU = {
    "precision": "fp32 bf16_on_gpu fp16 fp16_overflow_fused fp16_overflow_plain tf32_on tf32_off",
    "gradient scalers": "scaler_of_the_script scaler_of_an_override",
    "loading and memory": "pinned workers memory_of_the_gpu memory_runs_out best_checkpoint",
    "optimizers of the script": "optimizer_with_a_state optimizer_of_the_script_fp16 "
    "optimizer_around_another_fp16 fp16_stepped_by_the_user",
    "objects that move": "objects_that_move_without_waiting batches_that_move",
    "resuming": "resume_fp16 resume_bf16",
    "overrides": "overrides_in_fp16 overrides_compiled",
    "one model": "fp16_after_fp32 fp32_after_fp16 bf16_after_an_evaluation_in_float32",
}
"""Quick groups of scenarios on one GPU."""
ONE_GPU_SLOW = {
    "evaluation in half precision": "bf16_full_evaluation fp16_full_evaluation",
    "compiled": "compiled_eager compiled_aot_eager compiled_in_bf16 compiled_and_smoothed evaluated_before_compiled",
    "combined": "combined_bf16 combined_fp16 combined_fp32 combined_resumed",
    "optimizers of the script": "optimizer_of_the_script_fp16_plain optimizer_with_a_state_that_is_cast",
    "methods": "emptied_cache noisy_embeddings checkpointed_activations pageable fp16_overflow_accumulating",
    "resuming": "resume_fp32 resume_with_workers_of_the_gpu",
}
TWO_GPUS = {
    "ddp": "ddp_fp32 ddp_fp16 ddp_overrides_in_fp16 ddp_memory_runs_out",
    "fsdp": "fsdp2_fp16_full fsdp1_bf16_sharded fsdp2_schedule_free fsdp2_wrapped_optimizer",
    "context parallel": "cp_fp32_full",
}
"""Quick groups of scenarios on two GPUs."""
TWO_GPUS_SLOW = {
    "ddp": "ddp_bf16 ddp_by_sizes ddp_overrides ddp_in_8_bits ddp_in_8_bits_on_its_gpu ddp_quantized "
    "ddp_fp16_overflow ddp_best_checkpoint ddp_noisy_embeddings ddp_compiled ddp_bf16_full_evaluation "
    "objects_that_move ddp_wrapped_optimizer",
    "fsdp 1": "fsdp1_fp32_full fsdp1_fp32_sharded fsdp1_bf16_full fsdp1_fp16_full fsdp1_fp16_sharded "
    "resume_fsdp1_fp32 resume_fsdp1_bf16 resume_fsdp1_fp16 resume_fsdp1_tied_full fsdp1_tied_sharded "
    "fsdp1_adapter fsdp1_whole fsdp1_wrapped_optimizer",
    "fsdp 2": "fsdp2_fp32_full fsdp2_bf16_full fsdp2_fp32_sharded fsdp2_bf16_sharded fsdp2_fp16_sharded "
    "resume_fsdp2_fp32 resume_fsdp2_bf16 fsdp2_tied_sharded fsdp2_best_checkpoint fsdp2_noisy_embeddings "
    "fsdp2_compiled fsdp2_lomo fsdp2_not_resharded fsdp2_checkpointed fsdp2_fp16_overflow resume_fsdp2_tied_full "
    "fsdp2_schedule_free_tied fsdp2_adapter fsdp2_adapter_tied",
    "deepspeed": "zero2_fp16 zero0_fp16 zero1_fp32 zero1_bf16 zero1_fp16 zero2_fp32 zero2_bf16 zero2_own_optimizer "
    "zero2_checkpointed zero2_offloaded resume_zero2_fp32 resume_zero2_bf16 resume_zero2_fp16",
    "deepspeed, parameters in parts": "zero3_fp32 zero3_bf16 zero3_fp16 zero3_offloaded zero3_in_parts "
    "zero3_best_checkpoint zero3_evaluated resume_zero3_fp32 resume_zero3_fp16 "
    "resume_zero3_bf16",
    "deepspeed, matrices or sequences in parts": "split_zero1_bf16 sequences_zero2_bf16 sequences_zero3_fp32",
    "context parallel": "cp_bf16_sharded cp_fp16_full cp_rotated cp_in_one_piece cp_packed cp_own_loss "
    "cp_averaged_by_batch cp_smoothed resume_cp_fp32 resume_cp_bf16_sharded",
    "loaded in shards": "loaded_fsdp loaded_fsdp_bf16 loaded_fsdp_fp16 loaded_tp loaded_tp_bf16 loaded_tp_by_plan "
    "loaded_tp_memory_runs_out loaded_tp_by_model_init loaded_fsdp_by_model_init loaded_tp_smoothed "
    "loaded_tp_averaged_by_batch",
    "loaded with experts": "loaded_experts loaded_tp_experts",
}
"""transformers cannot resume FSDP 2 with fp16: it reads the optimizer before the scaler. Nor can it evaluate in
bfloat16 what FSDP 2 has trained in float32.
"""
FOUR_GPUS_SLOW = {
    "replicas of shards": "hsdp_fp32_full hsdp_bf16_sharded hsdp_fp16_full resume_hsdp_fp32 resume_hsdp_bf16",
    "context parallel": "cp_shards resume_cp_shards_rotated cp_of_four cp_of_four_rotated",
    "loaded in shards": "loaded_hsdp loaded_tp_fsdp loaded_tp_replicas loaded_hsdp_experts loaded_tp_fsdp_experts "
    "loaded_tp_fsdp_by_model_init",
}
EIGHT_GPUS_SLOW = {"context parallel": "cp_replicas"}
CROSSWISE = "resume_fp32 resume_bf16 resume_fp16"
SINCE_5 = (
    "hsdp", "resume_hsdp", "split_", "sequences_", "cp_", "resume_cp", "loaded_", "ddp_by_sizes", "tf32_",
    "memory_of_the_gpu", "fp32_after_fp16", "fsdp2_checkpointed",
)  # fmt: skip
"""Beginnings of the names of scenarios that are not compared with transformers 4.

It sets the older of torch's switches for TF32 alone, holds the last batch to the end of a run, scales the losses of
every Trainer after one with fp16, fails where layers with a key-value cache are computed again, counts the items of
ranks that share batches on each, and cannot load in shards; what it does with a ``parallelism_config`` has not been
compared.
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
    if any("zero" in name for name in names):
        pytest.importorskip("deepspeed", reason='DeepSpeed missing: pip install "hf-compat[deepspeed]"')
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


@pytest.mark.parametrize("names", groups({}, FOUR_GPUS_SLOW))
def test_four_gpus(names: list[str], tmp_path: Path):
    """Four ranks of a device mesh do as transformers."""
    for found in run_on_gpus(differing, compared(names), tmp_path, subject=SUBJECT, processes=4, devices=4):
        check(found)


@pytest.mark.parametrize("names", groups({}, EIGHT_GPUS_SLOW))
def test_eight_gpus(names: list[str], tmp_path: Path):
    """So do eight, of replicas of shards that share sequences."""
    for found in run_on_gpus(differing, compared(names), tmp_path, subject=SUBJECT, processes=8, devices=8):
        check(found)


@pytest.mark.slow
def test_saving_in_the_background(tmp_path: Path):
    """Checkpoints that two ranks save while they train on are those that transformers saves at once."""
    names = (
        "ddp_fp16 resume_fsdp1_bf16 fsdp2_bf16_sharded resume_zero2_bf16 zero3_fp16 resume_zero3_fp32 zero2_offloaded"
    )
    for found in run_on_gpus(differing_in_background, compared(names.split()), tmp_path):
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
    names = ["ddp_fp16", "resume_fsdp1_bf16", "resume_fsdp2_bf16", "resume_fsdp1_tied_full", "resume_fsdp2_tied_full"]
    for found in run_on_gpus(differing, compared(names), tmp_path / "two", subject=subject, starter=starter):
        check(found)
