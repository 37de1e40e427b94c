"""Runs of two to four processes whose strategy, precision, saves, evaluation and loaders are drawn by their seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

__all__ = ["LOADERS", "RUN_SEEDS", "DrawnRun", "draw_run"]

RUN_SEEDS = range(100, 115)
STRATEGIES = ("ddp", "ddp", "zero_1", "zero_2", "zero_3")
LOADERS: tuple[dict[str, Any], ...] = (
    {},
    {"dataloader_num_workers": 1},
    {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 1},
    {"train_sampling_strategy": "group_by_length"},
    {"train_sampling_strategy": "sequential"},
    {"data_seed": 7},
    {"dataloader_drop_last": True},
)
"""How batches are loaded, and in which order."""
_ACCELERATORS: tuple[dict[str, Any], ...] = (
    {},
    {"even_batches": False},
    {"split_batches": True},
    {"dispatch_batches": True, "split_batches": True},
    {"use_seedable_sampler": False},
)
_EVALUATIONS: tuple[dict[str, Any], ...] = (
    {"eval_strategy": "no"},
    {"eval_strategy": "epoch"},
    {"eval_strategy": "steps", "eval_steps": 2, "eval_accumulation_steps": 1},
    {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True},
    {"eval_strategy": "epoch", "prediction_loss_only": True},
    {"eval_strategy": "epoch", "eval_use_gather_object": True},
)
_OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"label_smoothing_factor": 0.1},
    {"max_grad_norm": 0.3, "weight_decay": 0.1},
    {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    {"average_tokens_across_devices": False},
    {"include_num_input_tokens_seen": "all"},
    {"logging_strategy": "epoch"},
    {"optim": "adamw_torch_fused", "adam_beta2": 0.95},
)


@dataclass(frozen=True)
class DrawnRun:
    """A run under either library."""

    processes: int
    strategy: str
    rows: int
    fields: dict[str, Any]
    """Training arguments."""
    resumed_at: int | None
    """The update step of the checkpoint from which a second run goes on; None if none does."""

    @property
    def needs_5(self) -> bool:
        """Whether transformers 4 cannot run it."""
        return self.resumed_at is not None


def draw_run(seed: int) -> DrawnRun:
    """Return the run of ``seed``."""
    chance = random.Random(seed)
    processes, strategy = chance.choice((2, 3, 4)), chance.choice(STRATEGIES)
    if strategy == "zero_3" and processes == 3:
        processes = 4  # parameters in three parts end in memory that nothing writes, and DeepSpeed saves that too
    batch, steps = chance.choice((1, 2, 3)), chance.choice((1, 2, 3))
    accelerator = dict(chance.choice(_ACCELERATORS))
    rows = chance.randrange(8 * processes, 12 * processes)
    if accelerator.get("even_batches") is False:
        rows -= rows % (processes * batch)  # ranks with fewer batches than others are refused
    if accelerator.get("split_batches"):
        batch *= processes
    fields: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": 3 * processes if accelerator.get("split_batches") else 3,
        "gradient_accumulation_steps": steps,
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": chance.choice((1, 2)),
        **chance.choice(LOADERS),
        **chance.choice(_EVALUATIONS),
        **chance.choice(_OTHERS),
        "accelerator_config": accelerator,
    }
    if chance.random() < 0.4:
        fields["bf16"] = True
    if chance.random() < 0.3:
        fields["save_total_limit"] = 2
    if strategy == "ddp" and fields["eval_strategy"] == "epoch" and chance.random() < 0.5:
        fields |= {"load_best_model_at_end": True, "save_strategy": "epoch"}
    resumes = chance.random() < 0.6 and fields["save_strategy"] == "steps" and "save_total_limit" not in fields
    return DrawnRun(processes, strategy, rows, fields, 2 if resumes else None)
