"""The scenarios that both trainers run; importing the package enters them into ``parity.SCENARIOS``."""

from tests.support.scenarios import (
    aids,
    calling,
    data,
    evaluating,
    generating,
    models,
    modes,
    moving,
    optimizers,
    overriding,
    resuming,
    saving,
    searching,
    tokens,
    updates,
)

__all__ = [
    "aids",
    "calling",
    "data",
    "evaluating",
    "generating",
    "models",
    "modes",
    "moving",
    "optimizers",
    "overriding",
    "resuming",
    "saving",
    "searching",
    "tokens",
    "updates",
]
