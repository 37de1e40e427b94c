"""The past state of models with memory: an output of one batch is the next batch's ``mems``, within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_compat.run.host import RunHost

__all__ = ["fresh_past"]


@contextmanager
def fresh_past(host: RunHost) -> Iterator[None]:
    """Context for an evaluation: starts without past state, and restores that of the training, if there is one."""
    outside = {name: value for name, value in vars(host).items() if name == "_past"}
    host._past = None
    try:
        yield
    finally:
        vars(host).pop("_past", None)
        vars(host).update(outside)
