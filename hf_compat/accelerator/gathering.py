"""Gathering outputs of a batch over ranks, without the duplicated samples of a last batch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.distributed import collectives

if TYPE_CHECKING:
    from hf_compat.accelerator.gradients import GradientState
    from hf_compat.engine.process_layout import ProcessLayout

__all__ = ["gather_outputs"]


def gather_outputs(
    data: Any, layout: ProcessLayout, state: GradientState, *, of_parts: bool, use_gather_object: bool = False
) -> Any:
    """Return ``data`` of all ranks that have other data; of the last batch without duplicated samples.

    Args:
        data: Tensors, however nested, or a list of other objects.
        layout: The ranks.
        state: Says whether the batch is the last, and how many of its samples are no duplicates.
        of_parts: Whether ranks that share sequences have data of their parts; otherwise theirs is the same.
        use_gather_object: Gather tensors as a list of objects too, if shapes differ.

    References:
        As in accelerate, duplicates are kept for a dataset without length and for tensors without dimensions.
    """
    by_object = use_gather_object or not collectives.has_only_tensors(data)
    gather = collectives.gather_objects if by_object else collectives.gather
    data = gather(data, layout.loss_group if of_parts else layout.data_parallel_group)
    remainder = state.remainder
    if not state.end_of_dataloader or remainder <= 0:
        return data
    parts = layout.sizes.cp if of_parts else 1
    cut = functools.partial(_first_samples, count=remainder, ranks=layout.data_parallel_size, parts=parts)
    try:
        return cut(data) if by_object else collectives.map_tensors(cut, data)
    except (IndexError, TypeError):
        return data


def _first_samples(rows: Any, *, count: int, ranks: int, parts: int) -> Any:
    """Return the rows of the first ``count`` samples, sample by sample, with a row for each part of it.

    Args:
        rows: A tensor or a list: those of each rank, each part of it, each sample.
        count: Samples to keep.
        ranks: Data-parallel size.
        parts: Ranks with parts of the same samples.
    """
    if parts == 1:
        return rows[:count]
    places = torch.arange(len(rows)).view(ranks, parts, -1).transpose(1, 2).reshape(-1)[: count * parts].tolist()
    return [rows[place] for place in places] if isinstance(rows, list) else rows[places]
