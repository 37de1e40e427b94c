"""What optimizers are made from: the fields of a run, and modules of which some are linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Settings:
    """The fields that an optimizer is made from."""

    optim: str
    optim_args: str | None = None
    learning_rate: float = 3e-4
    weight_decay: float = 0.01
    adam_beta1: float = 0.8
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-7
    warmup_steps: float = 12
    optim_target_modules: str | list[str] | None = None
    gradient_accumulation_steps: int = 1
    world_size: int = 1


def linears() -> torch.nn.Module:
    """Return modules called ``q``, ``mlp.up``, ``mlp.down`` and ``norm``; the last is not linear."""
    mlp = torch.nn.ModuleDict({"up": torch.nn.Linear(4, 8), "down": torch.nn.Linear(8, 4)})
    return torch.nn.ModuleDict({"q": torch.nn.Linear(4, 4), "mlp": mlp, "norm": torch.nn.LayerNorm(4)})
