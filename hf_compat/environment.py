"""Environment variables that switch something on."""

from __future__ import annotations

import os

_TRUE = ("1", "on", "true", "yes")


def is_switched_on(variable: str) -> bool:
    """Return whether ``variable`` is set to 1, on, true or yes: what transformers takes for true."""
    return os.environ.get(variable, "").lower() in _TRUE


def is_yes(word: str) -> bool:
    """Return whether ``word``, the value of a variable of accelerate's, means yes: y and t do as well."""
    return word.lower() in (*_TRUE, "t", "y")
