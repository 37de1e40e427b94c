"""The past state of models with memory: an output of one batch is the next batch's ``mems``, within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["fresh_past"]


@contextmanager
def fresh_past(trainer: Trainer) -> Iterator[None]:
    """Context for an evaluation: starts without past state, and restores that of the training, if there is one."""
    outside = {name: value for name, value in vars(trainer).items() if name == "_past"}
    trainer._past = None
    try:
        yield
    finally:
        vars(trainer).pop("_past", None)
        vars(trainer).update(outside)
