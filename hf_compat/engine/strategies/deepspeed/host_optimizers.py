"""DeepSpeed's optimizers for parameters that are offloaded to host memory."""

from __future__ import annotations

import importlib
from typing import Any

from torch.optim import Optimizer

from hf_compat.errors import TrainerSetupError

__all__ = ["cpu_optimizer", "optimizer_for_config"]

_CPU_OPTIMIZERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "AdamW": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": True}),
    "Adam": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": False}),
    "Adagrad": ("adagrad", "DeepSpeedCPUAdagrad", {}),
    "Lion": ("lion", "DeepSpeedCPULion", {}),
}
"""Optimizer by the name of its class to the module and class of DeepSpeed's for offloaded parameters, and keywords."""


def cpu_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return what updates offloaded parameters in place of ``optimizer``, in the same parameter groups.

    Raises:
        TrainerSetupError: If DeepSpeed has none like it.
    """
    classes = [kind.__name__ for kind in type(optimizer).__mro__]
    if any(name.startswith("DeepSpeedCPU") for name in classes):
        return optimizer
    found = next((_CPU_OPTIMIZERS[name] for name in classes if name in _CPU_OPTIMIZERS), None)
    if found is None:
        raise TrainerSetupError(
            f"`zero_optimization.offload_optimizer`: DeepSpeed has no optimizer in host memory like {classes[0]}, only "
            f"like {', '.join(_CPU_OPTIMIZERS)}: choose one of these by `optim`, drop the section, or set "
            "`zero_force_ds_cpu_optimizer` to false."
        )
    module, name, keywords = found
    kind: Any = getattr(importlib.import_module(f"deepspeed.ops.{module}"), name)
    made: Optimizer = kind(optimizer.param_groups, **keywords)
    return made


def optimizer_for_config(optimizer: Optimizer, config: dict[str, Any]) -> Optimizer:
    """Return ``optimizer``, or DeepSpeed's in host memory where ``config`` keeps its state there."""
    offload = config.get("zero_optimization", {}).get("offload_optimizer") or {}
    offloads = offload.get("device", "none") != "none" and config.get("zero_force_ds_cpu_optimizer", True)
    return cpu_optimizer(optimizer) if offloads else optimizer
