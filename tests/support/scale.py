"""What several ranks send each other for an update step, and hold, by the textbook: bytes a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SHARDINGS", "Sharding"]


@dataclass(frozen=True)
class Sharding:
    """A way to spread a model over ranks.

    An all-gather of ``b`` bytes over ``n`` ranks makes each send ``b * (n - 1) / n``, and so does a reduce-scatter; an
    all-reduce is both. Gloo, the library for CPUs, has no reduce-scatter: an all-reduce takes its place.
    """

    name: str
    fields: Mapping[str, Any]
    """Fields of ``TrainingArguments``."""
    gathers: int
    """How often an update step without accumulation gathers all parameters."""
    all_reduces: bool
    """Whether the gradients are all-reduced; else reduce-scattered."""
    half: bool
    """Whether parameters and gradients travel as bfloat16 with ``bf16=True``; else as float32."""
    held: Mapping[str, tuple[int, int]]
    """Bytes a parameter of parameters, gradients and AdamW's state, on each rank and on all together, by precision."""

    def sent(self, ranks: int, *, width: int = 4, gloo: bool = False) -> float:
        """Return the bytes a parameter that a rank sends for an update step.

        Args:
            ranks: The world size.
            width: Bytes of a number that travels.
            gloo: Whether there is no reduce-scatter.
        """
        rounds = self.gathers + (2 if self.all_reduces or gloo else 1)
        return width * rounds * (ranks - 1) / ranks

    def held_by(self, ranks: int, precision: str = "float32") -> float:
        """Return the bytes a parameter that a rank holds."""
        on_each, on_all = self.held[precision]
        return on_each + on_all / ranks


def _zero(stage: int, **more: Any) -> dict[str, Any]:
    # By default a small model is not partitioned again between forward and backward, and buffers are larger than it is.
    optimizer = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}
    return {
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 200_000, **more},
        "optimizer": optimizer,
        "train_micro_batch_size_per_gpu": "auto",
    }


_LARGE = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
_FSDP: dict[str, Any] = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
}

SHARDINGS = (
    Sharding("DDP", {}, 0, True, False, {"float32": (16, 0), "bf16": (16, 0)}),
    Sharding("FSDP", _FSDP, 2, False, True, {"float32": (0, 16), "bf16": (0, 16)}),
    # DeepSpeed keeps a float32 copy of the parameters beside them. At stage 2 its step frees the gradients before a
    # callback sees anything.
    Sharding("ZeRO-2", {"deepspeed": _zero(2)}, 1, False, True, {"float32": (4, 12), "bf16": (2, 12)}),
    Sharding("ZeRO-3", {"deepspeed": _zero(3, **_LARGE)}, 2, False, True, {"float32": (0, 20), "bf16": (0, 16)}),
)
