"""DeepSpeed's CPU optimizers, for parameters that are offloaded to the CPU."""

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
"""Name of an optimizer's class → module, class and keywords of DeepSpeed's CPU optimizer."""


def cpu_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return DeepSpeed's CPU optimizer that corresponds to ``optimizer``, with the same parameter groups.

    Raises:
        TrainerSetupError: If there is none.
    """
    classes = [kind.__name__ for kind in type(optimizer).__mro__]
    if any(name.startswith("DeepSpeedCPU") for name in classes):
        return optimizer
    found = next((_CPU_OPTIMIZERS[name] for name in classes if name in _CPU_OPTIMIZERS), None)
    if found is None:
        raise TrainerSetupError(
            f"`zero_optimization.offload_optimizer`: DeepSpeed has no CPU optimizer for {classes[0]}, only for "
            f"{', '.join(_CPU_OPTIMIZERS)}. Set `optim` to one of these, remove the section, or set "
            "`zero_force_ds_cpu_optimizer` to false."
        )
    module, name, keywords = found
    kind: Any = getattr(importlib.import_module(f"deepspeed.ops.{module}"), name)
    made: Optimizer = kind(optimizer.param_groups, **keywords)
    return made


def optimizer_for_config(optimizer: Optimizer, config: dict[str, Any]) -> Optimizer:
    """Return ``optimizer``, or the corresponding CPU optimizer if ``config`` offloads its state."""
    offload = config.get("zero_optimization", {}).get("offload_optimizer") or {}
    offloads = offload.get("device", "none") != "none" and config.get("zero_force_ds_cpu_optimizer", True)
    return cpu_optimizer(optimizer) if offloads else optimizer
