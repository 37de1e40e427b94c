"""Warnings of what DeepSpeed leaves out, or mixes up, when it reads a universal checkpoint."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.errors import HFCompatWarning

__all__ = ["differing_settings", "warn_of_buffers", "warn_of_shared_settings"]


def warn_of_buffers(model: nn.Module) -> None:
    """Warn of buffers in the state dict of ``model``, which DeepSpeed does not read from a universal checkpoint."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = [name for name in model.state_dict() if name not in parameters]
    if buffers:
        warnings.warn(
            f"The buffers {', '.join(buffers)} keep their values: DeepSpeed does not restore buffers from a universal "
            "checkpoint, with transformers' Trainer either. Load them into the model before training.",
            HFCompatWarning,
            stacklevel=2,
        )


def differing_settings(groups: list[dict[str, Any]]) -> list[str]:
    """Return the names of the settings in which parameter groups differ."""
    first = groups[0]
    return [name for name in first if name != "params" and any(first[name] != group[name] for group in groups)]


def warn_of_shared_settings(optimizer: Optimizer, differing: list[str]) -> None:
    """Warn of what parameter groups have in common after DeepSpeed has read a universal checkpoint under ZeRO-3.

    Args:
        optimizer: The optimizer inside ZeRO's.
        differing: The settings in which its groups differed before.
    """
    steps = [state["step"] for state in optimizer.state.values() if isinstance(state.get("step"), Tensor)]
    effects = [f"continue with the {', '.join(differing)} of the first"] if differing else []
    if len({id(step) for step in steps}) < len(steps):
        effects.append(f"share one step counter, which goes up {len(steps)} times an update step")
    if effects:
        warnings.warn(
            f"All parameter groups {' and '.join(effects)}: that is how DeepSpeed reads a universal checkpoint under "
            "ZeRO-3, also with transformers' Trainer. Use ZeRO-1 or 2 to continue as the checkpoint's run would have.",
            HFCompatWarning,
            stacklevel=2,
        )
