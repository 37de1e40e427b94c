"""Scenarios of both libraries on GPUs whose precision and training arguments are drawn by their seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.gpu.context_parallel import shared
from tests.gpu.scenarios import REPLICAS, resuming, sharded, training
from tests.support.drawn_runs import LOADERS
from tests.support.parity import Kit
from tests.support.presharded import presharded

Body = Callable[[Kit], None]
Fields = dict[str, Any]

SHARES_BATCHES = "loaded_tp"
"""Beginning of the names of scenarios in which ranks get the same batches, whose tokens transformers counts twice."""
CHOICES: tuple[tuple[Fields, ...], ...] = (
    (
        *LOADERS,
        {"dataloader_pin_memory": False},
        {"accelerator_config": {"non_blocking": True}},
    ),
    (
        {},
        {"eval_strategy": "no"},
        {"eval_strategy": "steps", "eval_steps": 2, "eval_accumulation_steps": 1},
        {"eval_strategy": "epoch", "prediction_loss_only": True},
        {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
        {"eval_strategy": "epoch", "per_device_eval_batch_size": 1},
    ),
    (
        {},
        {"max_grad_norm": 0.0},
        {"max_grad_norm": 0.3, "weight_decay": 0.1},
        {"optim": "adamw_torch", "adam_beta2": 0.95},
        {"optim": "sgd", "learning_rate": 0.1},
        {"optim": "adafactor"},
        {"optim": "adamw_torch_fused", "lr_scheduler_type": "cosine", "warmup_steps": 2},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.3},
    ),
    (
        {},
        {"label_smoothing_factor": 0.1},
        {"average_tokens_across_devices": False},
        {"include_num_input_tokens_seen": "all"},
        {"include_num_input_tokens_seen": "non_padding", "logging_first_step": True},
        {"neftune_noise_alpha": 4.0},
        {"gradient_checkpointing": True},
        {"torch_empty_cache_steps": 2},
        {"logging_strategy": "epoch", "logging_nan_inf_filter": False},
        {"logging_steps": 3},
        {"seed": 3},
    ),
    (
        {},
        {"gradient_accumulation_steps": 1},
        {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 1},
        {"max_steps": 5},
        {"save_only_model": True},
        {"save_total_limit": 1},
    ),
)
"""Alternatives, one of each is drawn."""


def draw(kind: str, seed: int) -> tuple[str, Fields, random.Random]:
    """Return the precision and the training arguments of ``seed``, and what further choices are drawn from."""
    chance, fields = random.Random(f"{kind} {seed}"), Fields()
    precision = chance.choice(("fp32", "bf16") if kind.startswith(SHARES_BATCHES) else ("fp32", "bf16", "fp16"))
    for alternatives in CHOICES:
        fields |= chance.choice([each for each in alternatives if is_comparable(kind, precision, each)])
    return precision, fields, chance


def is_comparable(kind: str, precision: str, fields: Fields) -> bool:
    """Return whether transformers trains a ``kind`` in ``precision`` with ``fields``, and counts as this Trainer."""
    optim = fields.get("optim")
    if optim == "adafactor":
        return kind in ("one_gpu", "ddp", "zero1", "zero2", "zero3")  # it takes no distributed tensors
    if optim in ("adamw_torch", "sgd") and precision == "fp16":
        return kind not in ("fsdp2", "hsdp")  # its saves are update steps of an optimizer that has no state yet
    counted = {"include_num_input_tokens_seen", "per_device_eval_batch_size"}
    return not (counted & fields.keys() and kind.startswith(SHARES_BATCHES))


def keeps_all(fields: Fields) -> bool:
    """Return whether a run with ``fields`` can go on from any of its checkpoints."""
    return not {"save_only_model", "save_total_limit", "max_steps"} & fields.keys()


def halved(precision: str, fields: Fields) -> Fields:
    """Return ``fields`` with the one that requests ``precision``."""
    return fields if precision == "fp32" else {**fields, precision: True}


def on_whole_models(kind: str, seed: int) -> Body:
    """Return a run whose ranks have the whole model."""
    precision, fields, chance = draw(kind, seed)
    resumes = keeps_all(fields) and chance.random() < 0.5
    return (resuming if resumes else training)(**halved(precision, fields))


def on_shards(kind: str, seed: int, *, version: int, sizes: Fields | None = None) -> Body:
    """Return a run under FSDP.

    transformers resumes none in float16 under its version 2, and no sharded checkpoint of version 1 with its optimizer.
    """
    precision, fields, chance = draw(kind, seed)
    state = "full" if "save_only_model" in fields else chance.choice(("full", "sharded"))
    if (version, precision) == (1, "fp16") and "optim" not in fields:
        fields["optim"] = "adamw_torch"  # torch's fused AdamW does not take the scaler of FSDP 1
    resumes = keeps_all(fields) and precision != "fp16" and (version, state) != (1, "sharded") and chance.random() < 0.5
    return sharded(version, state, resumes=resumes, sizes=sizes, **halved(precision, fields))


def on_loaded_shards(kind: str, seed: int, *, sizes: Fields) -> Body:
    """Return a run of a model that is loaded in shards."""
    precision, fields, _ = draw(kind, seed)
    return presharded(sizes=sizes, **halved(precision, fields))


def on_parts_of_sequences(kind: str, seed: int) -> Body:
    """Return a run whose ranks share sequences by ring attention."""
    precision, fields, chance = draw(kind, seed)
    state = "full" if "save_only_model" in fields else chance.choice(("full", "sharded"))
    rotation = chance.choice((None, "alltoall"))
    return shared(state=state, rotation=rotation, **halved(precision, fields))


def on_partitions(kind: str, seed: int, *, stage: int) -> Body:
    """Return a run under ZeRO."""
    from tests.gpu.partitions import zero  # needs packages that a lent machine may lack

    precision, fields, chance = draw(kind, seed)
    return zero(stage, precision, resumes=keeps_all(fields) and chance.random() < 0.4, **fields)


KINDS: dict[str, Callable[[str, int], Body]] = {
    "one_gpu": on_whole_models,
    "ddp": on_whole_models,
    "fsdp1": partial(on_shards, version=1),
    "fsdp2": partial(on_shards, version=2),
    "hsdp": partial(on_shards, version=2, sizes=REPLICAS),
    **{f"zero{stage}": partial(on_partitions, stage=stage) for stage in (1, 2, 3)},
    "cp": on_parts_of_sequences,
    "loaded_fsdp": partial(on_loaded_shards, sizes={"fsdp_size": 2}),
    "loaded_tp": partial(on_loaded_shards, sizes={"tp_size": 2}),
    "loaded_tp_fsdp": partial(on_loaded_shards, sizes={"tp_size": 2, "fsdp_size": 2}),
}
"""Kind of run, as the names of its scenarios begin, and what returns one of them."""


def drawn(name: str) -> Body:
    """Return the scenario of a name such as ``fsdp2_drawn_3``: a key of ``KINDS``, and a seed."""
    kind, seed = name.split("_drawn_")
    return KINDS[kind](kind, int(seed))
