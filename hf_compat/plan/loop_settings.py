"""``LoopSettings``: how a run goes about its work, where Lightning's keywords say what no training argument says."""

from __future__ import annotations

from dataclasses import dataclass

from hf_compat.plan.evaluation_times import EvaluationTimes

__all__ = ["LoopSettings"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of a run that keywords of ``lightning.Trainer`` add to its training arguments."""

    clip_value: float | None = None
    """Clip each element of the gradients to between minus this and this; None to clip by ``max_grad_norm``."""
    sanity_batches: int = 0
    """Batches of an evaluation that a run begins with, to see that it works; -1 for all."""
    reload_every: int = 0
    """Epochs after which a run asks for a new train loader; 0 for never."""
    shards_batches: bool = True
    """Whether each rank gets its share of the batches; otherwise its own loader is left as it is."""
    evaluation_times: EvaluationTimes | None = None
    """When the run evaluates; None if the training arguments say it."""
