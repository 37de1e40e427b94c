"""Preparing a process for DeepSpeed: its device, LOCAL_RANK, and a process group even for a world size of 1."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from hf_compat.distributed.launch import Launch
from hf_compat.distributed.processes import join_alone
from hf_compat.errors import require_package

if TYPE_CHECKING:
    import torch

__all__ = ["import_deepspeed", "prepare_process"]


def import_deepspeed(device: torch.device) -> ModuleType:
    """Return the module ``deepspeed``, imported for ``device``, which it detects on import.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    on_cpu = device.type == "cpu"
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    if on_cpu:
        # Communication through shared memory needs a C++ extension that takes minutes to build; gloo needs none.
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def prepare_process(launch: Launch, device: torch.device) -> None:
    """Set LOCAL_RANK, which DeepSpeed reads, and with a world size of 1 initialize the process group.

    Nothing that a launcher or the script has set is changed. Without a process group DeepSpeed would try MPI.

    Raises:
        TrainerSetupError: If torch has no process-group backend for ``device``.
    """
    os.environ.setdefault("LOCAL_RANK", str(launch.local_rank))
    if launch.world_size == 1:
        join_alone(device)
