"""The names that a ported script imports from hf_compat, and the modules of transformers that have them."""

from __future__ import annotations

from functools import cache

import hf_compat
from hf_compat.installing.replaced_names import NOT_REPLACED, is_watched

__all__ = ["DEFAULTS", "is_moved", "is_trainer_module", "moved_names"]

DEFAULTS = frozenset({"DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK"})
"""Constants that move all the same: a ported script that changes one of them means that of the Trainers it builds."""
_TRAINER_MODULES = ("trainer", "trainer_callback", "trainer_seq2seq", "training_args", "training_args_seq2seq")


@cache
def moved_names() -> frozenset[str]:
    """Return the names that move: classes and functions, but not constants, which are equal in both libraries."""
    functional = {name for name in hf_compat.__all__ if not (name.isupper() or name.startswith("__"))}
    return frozenset(functional - NOT_REPLACED.keys() | DEFAULTS)


def is_moved(module: str, name: str) -> bool:
    """Return whether the ``name`` that a script takes from ``module``, a dotted name, comes from hf_compat then."""
    return is_watched(module) and name in moved_names()


def is_trainer_module(module: str) -> bool:
    """Return whether ``module`` is one of those that make up transformers' Trainer."""
    return module.removeprefix("transformers.") in _TRAINER_MODULES
