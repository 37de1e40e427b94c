"""The scenarios that both trainers run; importing the package enters them into ``parity.SCENARIOS``."""

from tests.support.scenarios import (
    aids,
    data,
    evaluating,
    generating,
    models,
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
    "data",
    "evaluating",
    "generating",
    "models",
    "optimizers",
    "overriding",
    "resuming",
    "saving",
    "searching",
    "tokens",
    "updates",
]
