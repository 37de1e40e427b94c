"""Values of ``parallelism_config`` and of its handlers, or of the launcher's variables, and their problems."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hf_compat.arguments.checking.problems import Problem

__all__ = ["config_problem", "config_value", "handler_value", "launched_value"]


def config_value(given: object, name: str) -> Any:
    """Return a value of ``given``, accelerate's ``ParallelismConfig`` or a dict of its keywords; None if not set."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def launched_value(name: str) -> str | None:
    """Return the value that ``accelerate launch`` has set for a keyword; None without one."""
    return os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}")


def handler_value(given: object, handler: str, name: str) -> Any:
    """Return a value of a handler of ``given``, an object or a dict; where it is not set, the launcher's."""
    value = config_value(config_value(given, handler), name)
    return launched_value(name) if value is None else value


def config_problem(key: str, value: object, text: str, *, unsupported: bool = False) -> Problem:
    """Return the problem of a keyword of ``parallelism_config``."""
    return Problem("parallelism_config", {key: value}, text, unsupported=unsupported)
