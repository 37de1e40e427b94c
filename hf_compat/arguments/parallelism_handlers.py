"""The handlers and backends of ``parallelism_config``: what they may say, whichever sizes there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.checking.problems import Problem

__all__ = [
    "BACKENDS",
    "HANDLERS",
    "config_problem",
    "config_value",
    "handler_problems",
    "handler_value",
    "launched_value",
    "unused_handlers",
]


@dataclass(frozen=True, slots=True)
class _Handler:
    """One handler of accelerate's ``ParallelismConfig``."""

    size: str
    """The size that it is for."""
    class_name: str
    """accelerate's class of it."""
    keywords: tuple[str, ...]
    """The keywords of that class."""


HANDLERS = {
    "tp_handler": _Handler("tp_size", "TorchTensorParallelConfig", ("enable_async_tp",)),
    "cp_handler": _Handler("cp_size", "TorchContextParallelConfig", ("cp_comm_strategy",)),
    "sp_handler": _Handler(
        "sp_size",
        "DeepSpeedSequenceParallelConfig",
        ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
    ),
}
"""Each handler by its keyword of ``ParallelismConfig``."""
BACKENDS = {"cp_backend": "torch", "sp_backend": "deepspeed"}
"""Keyword of ``ParallelismConfig`` → the one value that accelerate takes."""


def handler_problems(given: object, *, launched: bool) -> Iterator[Problem]:
    """Yield the problems of handlers and backends.

    Args:
        given: accelerate's ``ParallelismConfig`` or a dict of its keywords; None without one.
        launched: Whether the launcher's variables count where ``given`` says nothing.
    """
    for name, handler in HANDLERS.items():
        value = config_value(given, name)
        if value is not None:
            yield from _problems_of(name, handler, value)
    for name, backend in BACKENDS.items():
        value = config_value(given, name) or (launched_value(name) if launched else None)
        if value not in (None, backend):
            yield config_problem(name, value, f"must be {backend!r}.")


def unused_handlers(given: object, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return each handler of ``given`` whose size is 1, so that it has no effect, with the keyword of that size."""
    named = {name: handler.size for name, handler in HANDLERS.items() if config_value(given, name) is not None}
    return {name: size for name, size in named.items() if sizes[size] == 1}


def _problems_of(name: str, handler: _Handler, value: object) -> Iterator[Problem]:
    known, kind = ", ".join(handler.keywords), handler.class_name
    if isinstance(value, Mapping):
        for key in sorted(set(value) - set(handler.keywords), key=str):
            yield config_problem(name, {key: value[key]}, f"{key!r} is not a keyword of `{kind}`; use {known}.")
    elif not all(hasattr(value, key) for key in handler.keywords):
        yield config_problem(name, value, f"pass accelerate's `{kind}` or a dict of its keywords: {known}.")
        return
    if config_value(value, "enable_async_tp"):
        text = "asynchronous tensor parallelism is not supported; accelerate ignores it. Remove it."
        yield config_problem("tp_handler", {"enable_async_tp": True}, text, unsupported=True)


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
