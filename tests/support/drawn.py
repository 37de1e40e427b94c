"""Combinations of strategy, precision, accumulation, checkpoint and processes at the resume, drawn by their seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

SEEDS = range(10, 20)
HALVES: dict[str, dict[str, Any]] = {"float32": {}, "bf16": {"bf16": True}}
KINDS = {"ddp": ("full",), "fsdp1": ("full", "sharded"), "fsdp2": ("full", "sharded")}
"""Strategy → its checkpoints; DeepSpeed's otherwise."""
BACKGROUND = ", in the background"


@dataclass(frozen=True)
class Drawn:
    """A run of two processes that is interrupted, and what goes on from it."""

    strategy: str
    precision: str
    samples: int
    """Of an update step, over all processes."""
    checkpoint: str
    until: int
    """The update step after which it is interrupted."""
    processes: int
    """How many go on."""

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of ``TrainingArguments`` that are the same under both libraries."""
        shards = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}.get(self.checkpoint.split(",")[0])
        fields: dict[str, Any] = dict(HALVES[self.precision])
        if self.strategy == "fsdp1":
            fields["fsdp_config"] = {"version": 1, "state_dict_type": shards}
        if self.strategy == "fsdp2":
            fields["fsdp_config"] = {"version": 2, "state_dict_type": shards}
        return fields

    @property
    def own_fields(self) -> dict[str, Any]:
        """Fields that only this Trainer's arguments have."""
        return {"save_async": True} if self.checkpoint.endswith(BACKGROUND) else {}

    @property
    def has_upstream(self) -> bool:
        """Whether transformers trains it on a CPU, and resumes it on so many processes."""
        return self.strategy == "ddp" or (self.strategy.startswith("zero") and self.processes == 2)


def draw(seed: int) -> Drawn:
    """Return the combination of ``seed``."""
    chance = random.Random(seed)
    strategy = chance.choice(("ddp", "fsdp1", "fsdp2", "zero_1", "zero_2", "zero_3"))
    kinds = KINDS.get(strategy, ("DeepSpeed's",))
    return Drawn(
        strategy=strategy,
        precision=chance.choice(tuple(HALVES)),
        samples=chance.choice((12, 24)),
        checkpoint=chance.choice(kinds) + chance.choice(("", BACKGROUND)),
        until=chance.choice((1, 2, 3)),
        processes=chance.choice((1, 2, 3)),
    )
