"""Votes of ``DistributedDataParallel``: before it exchanges gradients, the ranks vote whether one is out of memory.

A bucket of gradients is exchanged during the backward pass, so that a rank that fails in the middle of it has exchanged
some of them. Asked before each bucket, no rank exchanges one that another will not.

Annotations are evaluated here: torch checks those of a communication hook.
"""

from typing import Any

import torch
from torch import distributed
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from hf_compat.distributed.oom_consensus import vote


def vote_before_exchanges(model: DistributedDataParallel) -> None:
    """Have the wrapper ``model`` vote before it exchanges gradients or buffers."""
    model.register_forward_pre_hook(_before_buffers)
    model.register_comm_hook(None, _average)


def _before_buffers(model: DistributedDataParallel, inputs: object) -> None:
    if model.require_forward_param_sync:  # the first forward pass after an exchange of gradients
        vote()


def _average(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
    """Vote, then return the average of the bucket's gradients, rounded as without a hook."""
    vote()
    scaled = bucket.buffer().mul_(1 / distributed.get_world_size())
    future: Any = distributed.all_reduce(scaled, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]
