"""Functions of the local rank, for scripts."""

from __future__ import annotations

__all__ = ["is_main_process", "total_processes_number"]


def is_main_process(local_rank: int) -> bool:
    """Return whether ``local_rank`` is the main process of its node: 0, or -1 without distributed training."""
    return local_rank in (-1, 0)


def total_processes_number(local_rank: int) -> int:
    """Return the world size: 1 if ``local_rank`` is -1, else that of the process group."""
    if local_rank == -1:
        return 1
    import torch

    return torch.distributed.get_world_size()
