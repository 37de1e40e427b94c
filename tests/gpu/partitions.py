"""Models that DeepSpeed partitions, or splits, over several GPUs, as scenarios of both libraries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.scripts.deepspeed_scenarios import AUTO, TORCH_ADAM, config, resumed, split_and_trained, trained
from tests.scripts.sequence_parallel_scenarios import train_sequences as sequences_trained
from tests.support.deepspeed_tools import without_extension
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model

Body = Callable[[Kit], None]
Fields = dict[str, Any]

BF16: Fields = {"bf16": {"enabled": AUTO}}
FP16: Fields = {"fp16": {"enabled": AUTO, "initial_scale_power": 20, "loss_scale_window": 3, "hysteresis": 1}}
"""The first scales are too large, so that updates are skipped; later ones grow again."""
HALVES: dict[str, tuple[Fields, Fields]] = {
    "fp32": ({}, {}),
    "bf16": (BF16, {"bf16": True}),
    "fp16": (FP16, {"fp16": True}),
}
"""Precision → sections of the config and training arguments."""
BUCKETS: Fields = {
    **dict.fromkeys(("allgather_bucket_size", "reduce_bucket_size", "sub_group_size"), 5000),
    "stage3_param_persistence_threshold": 100,
}
"""Several buckets for the small models here; those of DeepSpeed have gigabytes, all of which the fake device fills."""
ON_THE_HOST: Fields = {"device": "cpu", "pin_memory": True}


def zero(stage: int, precision: str = "fp32", *, resumes: bool = False, **given: Any) -> Body:
    """Return a scenario of ZeRO ``stage`` that trains, evaluates and saves, or goes on within an epoch.

    Args:
        stage: Of ZeRO.
        precision: A key of ``HALVES``.
        resumes: Whether it goes on within an epoch.
        **given: Sections of the config, in capital letters, and training arguments.
    """
    sections, fields = HALVES[precision]
    own = {name.lower(): value for name, value in given.items() if name.isupper()}
    fields = {**fields, **{name: value for name, value in given.items() if not name.isupper()}}
    partitions = {**BUCKETS, **own.pop("zero_optimization", {})}
    settings = config(stage, zero_optimization=partitions, **sections, **own)
    if resumes:
        return lambda kit: resumed(kit, settings, **fields)

    def body(kit: Kit) -> None:
        trainer = trained(kit, settings, **{"save_strategy": "epoch", **fields})
        kit.evaluate(trainer)
        kit.predict(trainer, trainer.eval_dataset)

    return body


def evaluated_without_training(kit: Kit) -> None:
    """ZeRO-3 partitions a model that is not trained, too."""
    without_extension()
    trainer = language_model(kit, fields={"deepspeed": config(3, zero_optimization=BUCKETS, **BF16), "bf16": True})
    kit.evaluate(trainer)


def weights_in_parts(kit: Kit) -> None:
    """The checkpoints of ZeRO-3 contain DeepSpeed's files alone."""
    without_extension()
    partitions = {**BUCKETS, "stage3_gather_16bit_weights_on_model_save": False}
    fields = {"save_strategy": "epoch", "bf16": True, "deepspeed": config(3, zero_optimization=partitions, **BF16)}
    trainer = language_model(kit, fields=fields)
    kit.train(trainer)
    trainer.save_model()


PARTITION_SCENARIOS: dict[str, Body] = {
    **{f"zero{stage}_{name}": zero(stage, name) for stage in (1, 2, 3) for name in HALVES},
    **{
        f"resume_zero{stage}_{precision}": zero(stage, precision, resumes=True)
        for stage in (2, 3)
        for precision in HALVES
    },
    "zero0_fp16": zero(0, "fp16"),
    "zero2_own_optimizer": zero(2, "bf16", OPTIMIZER=TORCH_ADAM),
    "zero2_checkpointed": zero(2, "bf16", gradient_checkpointing=True, neftune_noise_alpha=5.0),
    "zero2_offloaded": zero(
        2, "bf16", ZERO_OPTIMIZATION={"offload_optimizer": ON_THE_HOST}, ZERO_FORCE_DS_CPU_OPTIMIZER=False
    ),
    "zero3_offloaded": zero(
        3,
        "bf16",
        ZERO_OPTIMIZATION={"offload_optimizer": ON_THE_HOST, "offload_param": ON_THE_HOST},
        ZERO_FORCE_DS_CPU_OPTIMIZER=False,
    ),
    "zero3_in_parts": weights_in_parts,
    "zero3_best_checkpoint": zero(3, "bf16", load_best_model_at_end=True, save_total_limit=1, eval_strategy="epoch"),
    "zero3_evaluated": evaluated_without_training,
    "sequences_zero2_bf16": partial(
        sequences_trained, stage=2, bf16=True, gradient_accumulation_steps=3, max_steps=4, buckets=BUCKETS
    ),
    "sequences_zero3_fp32": partial(sequences_trained, stage=3, max_steps=3, save_strategy="steps", buckets=BUCKETS),
    "split_zero1_bf16": partial(split_and_trained, stage=1, zero=BUCKETS, bf16=True, save_strategy="epoch"),
}
"""Each scenario of DeepSpeed on two GPUs, by its name."""
