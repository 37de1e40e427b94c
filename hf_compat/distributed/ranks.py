"""What scripts ask of the rank that a launcher gave a process."""

from __future__ import annotations

__all__ = ["is_main_process", "total_processes_number"]


def is_main_process(local_rank: int) -> bool:
    """Return whether ``local_rank`` is the main process of its machine: 0, or -1 where there is only one."""
    return local_rank in (-1, 0)


def total_processes_number(local_rank: int) -> int:
    """Return the processes of the run: 1 where ``local_rank`` is -1, else as many as the process group has."""
    if local_rank == -1:
        return 1
    import torch

    return torch.distributed.get_world_size()
