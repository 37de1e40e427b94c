"""Input tokens: counting them batch by batch or ahead of training, and their numbers in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.data.limiting import FirstBatches
from hf_compat.metrics import has_length, speed_metrics
from hf_compat.overriding import WarnOnce
from hf_compat.plan import RunPlan

if TYPE_CHECKING:
    from hf_compat.run.host import RunHost
    from hf_compat.run.progress import Counts

__all__ = ["count_train_tokens", "token_logs", "track_input_tokens"]

logger = logging.getLogger(__name__)


def count_train_tokens(host: RunHost, plan: RunPlan, loader: Iterable[Any]) -> float | None:
    """Return the input tokens of the whole run, from a pass over ``loader``; None if they are not needed.

    The pass draws random numbers, as an epoch does. If ``max_steps`` says when the run ends, it is one batch long, and
    that batch's tokens stand for those of all.

    Args:
        host: The Trainer.
        plan: The numbers of the run.
        loader: The train loader.
    """
    args = host.args
    if host.semantics.counts_tokens_as_seen or not args.include_tokens_per_second:
        return None
    if args.max_steps < 0:
        limited = has_length(loader) and plan.batches_per_epoch < len(loader)
        read = FirstBatches(loader, plan.batches_per_epoch, args.world_size) if limited else loader
        return host.num_tokens(read, None) * args.num_train_epochs
    return host.num_tokens(loader, plan.max_steps) * args.gradient_accumulation_steps


def token_logs(host: RunHost, counts: Counts, start_time: float | None) -> dict[str, float]:
    """Return the input tokens seen and, with ``start_time``, their speed; empty if they are not counted."""
    if host.args.include_num_input_tokens_seen == "no":
        return {}
    seen = host.state.num_input_tokens_seen
    logs: dict[str, float] = {"num_input_tokens_seen": seen}
    if start_time is not None:
        before = counts.initial_tokens if host.semantics.speed_counts_session_tokens else 0
        logs |= speed_metrics("train", start_time, num_tokens=seen - before)
    return logs


def track_input_tokens(host: RunHost, inputs: dict[str, Any], warn_once: WarnOnce) -> None:
    """Add the tokens of one batch, over all ranks, to ``state.num_input_tokens_seen`` if the arguments say so."""
    kind = host.args.include_num_input_tokens_seen
    if kind == "no":
        return
    name = getattr(host.model, "main_input_name", "input_ids")
    if name not in inputs:
        text = (
            f"Tried to track the number of tokens seen, but batches have no `{name}`: set the model's "
            f"`main_input_name` to the name of the inputs, or remove `include_num_input_tokens_seen={kind!r}`."
        )
        warn_once.in_log(logger, text)
        return
    tokens: Any = inputs[name].numel()
    pad = getattr(host.processing_class, "pad_token_id", None)
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
    if isinstance(tokens, int) and host.args.world_size == 1:  # nothing to wait for
        host.state.num_input_tokens_seen += tokens
        return
    counted = torch.as_tensor(tokens, device=host.args.device, dtype=torch.int64)
    host.state.num_input_tokens_seen += int(host.accelerator.gather(counted).sum())
