"""DeepSpeed made ready in this process: for its device, among the processes that know each other already."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.optim import Optimizer

from hf_compat.arguments.launch import Launch
from hf_compat.errors import TrainerSetupError, require_package

__all__ = ["import_deepspeed", "optimizer_on_host", "told_its_process"]


def import_deepspeed(device: torch.device) -> Any:
    """Return DeepSpeed, which looks for its device while it is imported, for ``device``."""
    on_cpu = device.type == "cpu"
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed: Any = require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    if on_cpu:
        # Through shared memory the processes would talk by a C++ extension, built for minutes; gloo needs none.
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _store() -> Any:
    store: Any = getattr(distributed, "HashStore")  # noqa: B009 - torch does not list it among its public names
    return store()


@contextmanager
def told_its_process(launch: Launch, device: torch.device) -> Iterator[None]:
    """Run the block with the variables that DeepSpeed asks for, and a process group even for one process."""
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=_store(), rank=0, world_size=1)
    added = {} if "LOCAL_RANK" in os.environ else {"LOCAL_RANK": str(launch.local_rank)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


_ON_HOST: dict[str, tuple[str, str, dict[str, Any]]] = {
    "AdamW": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": True}),
    "Adam": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": False}),
    "Adagrad": ("adagrad", "DeepSpeedCPUAdagrad", {}),
    "Lion": ("lion", "DeepSpeedCPULion", {}),
}
"""Optimizer by the name of its class to the module and class of DeepSpeed's for offloaded parameters, and keywords."""


def optimizer_on_host(optimizer: Optimizer) -> Optimizer:
    """Return what updates offloaded parameters in place of ``optimizer``, in the same parameter groups.

    Raises:
        TrainerSetupError: If DeepSpeed has none like it.
    """
    classes = [kind.__name__ for kind in type(optimizer).__mro__]
    if any(name.startswith("DeepSpeedCPU") for name in classes):
        return optimizer
    found = next((_ON_HOST[name] for name in classes if name in _ON_HOST), None)
    if found is None:
        raise TrainerSetupError(
            f"`zero_optimization.offload_optimizer`: DeepSpeed has no optimizer in host memory like {classes[0]}, only "
            f"like {', '.join(_ON_HOST)}: choose one of these by `optim`, drop the section, or set "
            "`zero_force_ds_cpu_optimizer` to false."
        )
    module, name, keywords = found
    kind: Any = getattr(importlib.import_module(f"deepspeed.ops.{module}"), name)
    made: Optimizer = kind(optimizer.param_groups, **keywords)
    return made
