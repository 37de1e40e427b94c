"""Input tokens: counting them batch by batch or ahead of training, and their numbers in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.arguments.cadence import epochs_to_train
from hf_compat.data.loader import FirstBatches
from hf_compat.metrics import has_length, speed_metrics
from hf_compat.overriding import WarnOnce
from hf_compat.plan import RunPlan

if TYPE_CHECKING:
    from hf_compat.run.progress import RunCounters
    from hf_compat.trainer.trainer import Trainer

__all__ = ["count_train_tokens", "counts_tokens", "token_logs", "track_input_tokens"]

logger = logging.getLogger(__name__)


def count_train_tokens(trainer: Trainer, plan: RunPlan, loader: Iterable[Any]) -> float | None:
    """Return the input tokens of the whole run, from a pass over ``loader``; None if they are not needed.

    The pass draws random numbers, as an epoch does. If ``max_steps`` says when the run ends, it is one batch long, and
    that batch's tokens stand for those of all.

    Args:
        trainer: The Trainer.
        plan: The numbers of the run.
        loader: The train loader.
    """
    args = trainer.args
    if trainer.semantics.counts_tokens_as_seen or not args.include_tokens_per_second:
        return None
    if (epochs := epochs_to_train(args)) is not None:
        limited = has_length(loader) and plan.batches_per_epoch < len(loader)
        read = FirstBatches(loader, plan.batches_per_epoch, args.world_size) if limited else loader
        return trainer.num_tokens(read, None) * epochs
    return trainer.num_tokens(loader, plan.max_steps) * args.gradient_accumulation_steps


def counts_tokens(trainer: Trainer) -> bool:
    """Return whether input tokens are counted."""
    return trainer.args.include_num_input_tokens_seen != "no"


def token_logs(trainer: Trainer, counters: RunCounters, start_time: float | None) -> dict[str, float]:
    """Return the input tokens seen and, with ``start_time``, their speed."""
    seen = trainer.state.num_input_tokens_seen
    logs: dict[str, float] = {"num_input_tokens_seen": seen}
    if start_time is not None:
        before = counters.initial_tokens if trainer.semantics.speed_counts_session_tokens else 0
        logs |= speed_metrics("train", start_time, num_tokens=seen - before)
    return logs


def track_input_tokens(trainer: Trainer, inputs: dict[str, Any], warn_once: WarnOnce) -> None:
    """Add the tokens of one batch, over all ranks, to ``state.num_input_tokens_seen``."""
    kind = trainer.args.include_num_input_tokens_seen
    name = getattr(trainer.model, "main_input_name", "input_ids")
    if name not in inputs:
        text = (
            f"Tried to track the number of tokens seen, but batches have no `{name}`: set the model's "
            f"`main_input_name` to the name of the inputs, or remove `include_num_input_tokens_seen={kind!r}`."
        )
        warn_once.in_log(logger, text)
        return
    tokens: Any = inputs[name].numel()
    pad = getattr(trainer.processing_class, "pad_token_id", None)
    if kind == "non_padding" and "attention_mask" in inputs:
        tokens = inputs["attention_mask"].sum()
    elif kind == "non_padding" and pad is not None:
        tokens = (inputs[name] != pad).sum()
    elif kind == "non_padding":
        text = (
            "Could not determine method to count non-padding tokens, so all are counted. For "
            "`include_num_input_tokens_seen='non_padding'` batches must have an `attention_mask`, or a "
            "`processing_class` a `pad_token_id`."
        )
        warn_once.in_log(logger, text)
    if isinstance(tokens, int) and trainer.args.world_size == 1:  # nothing to wait for
        trainer.state.num_input_tokens_seen += tokens
        return
    counted = torch.as_tensor(tokens, device=trainer.args.device, dtype=torch.int64)
    trainer.state.num_input_tokens_seen += int(trainer.accelerator.gather(counted).sum()) // trainer.get_cp_size()
