"""NCCL for the fake device: it takes the device's tensors alone, and gloo exchanges copies of them."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d as c10d


def install(extension: ModuleType) -> None:
    """Make ``backend="nccl"`` work in this process."""

    class ProcessGroupNCCL(extension.FakeNCCL):  # type: ignore[misc, name-defined]
        class Options:
            is_high_priority_stream = False

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            inner = c10d.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            super().__init__(rank, size, inner)
            self.inner, self.options = inner, options

    join = c10d.init_process_group

    def init_process_group(*given: Any, device_id: Any = None, **named: Any) -> None:
        join(*given, **named)  # bound to a device, its groups would be split from it, which is NCCL's alone
        if device_id is not None:
            refuse_duplicates(device_id)

    def refuse_duplicates(device: torch.device) -> None:
        store, rank = c10d._get_default_store(), dist.get_rank()
        store.set(f"GPU of {rank}", f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {device}")
        places = [store.get(f"GPU of {each}") for each in range(dist.get_world_size())]
        if len(set(places)) < len(places):
            raise dist.DistBackendError(f"Duplicate GPU detected : rank {rank} is on {device} as another (fake NCCL)")

    def split_group(
        parent: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None, group_desc: Any = None
    ) -> Any:
        groups = [c10d.new_group(ranks, timeout=timeout, group_desc=group_desc) for ranks in split_ranks]
        mine = (group for group, ranks in zip(groups, split_ranks, strict=True) if dist.get_rank() in ranks)
        return next(mine, None)

    for module in (c10d, dist):
        module.init_process_group = init_process_group
        module.split_group = split_group
        module.is_nccl_available = lambda: True
        module.ProcessGroupNCCL = ProcessGroupNCCL
    device_mesh.split_group = split_group
    c10d._NCCL_AVAILABLE = True
    torch.cuda.nccl.version = lambda: (2, 27, 0)  # messages of errors name it
