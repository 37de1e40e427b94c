"""The values of ``TrainingArguments.optim_args``, a string such as ``"momentum=0.9,nesterov=true"``."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any

from hf_compat.errors import ArgumentsError

__all__ = ["convert_options", "parse_bool", "parse_flag", "parse_literal", "parse_optim_args"]

_FLAGS = {"y": 1, "yes": 1, "t": 1, "true": 1, "on": 1, "1": 1, "n": 0, "no": 0, "f": 0, "false": 0, "off": 0, "0": 0}


def parse_optim_args(text: str | None) -> dict[str, str]:
    """Return the names and values in ``text``, spaces removed.

    Raises:
        ArgumentsError: If ``text`` is not of the form ``name=value,name=value``.
    """
    values = {}
    for part in text.replace(" ", "").split(",") if text else ():
        name, _, value = part.partition("=")
        if not name or not value or "=" in value:
            raise ArgumentsError([f"`optim_args={text!r}`: write it as 'name=value,name=value'."])
        values[name] = value
    return values


def parse_flag(value: str) -> int:
    """Return 1 for a true value and 0 for a false one, as ``strtobool``.

    Raises:
        ArgumentsError: If ``value`` is neither.
    """
    try:
        return _FLAGS[value.lower()]
    except KeyError:
        raise ArgumentsError([f"`optim_args` has the value {value!r} for a boolean: use 'true' or 'false'."]) from None


def parse_bool(value: str) -> bool:
    """Return whether ``value`` is ``true``, ``1`` or ``yes``."""
    return value.lower() in ("true", "1", "yes")


def parse_literal(value: str) -> object:
    """Return the Python literal in ``value``, or ``value`` itself if it is none."""
    try:
        literal: object = literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    return literal


def convert_options(options: dict[str, str], converters: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return those of ``options`` that are in ``converters``, converted."""
    return {name: convert(options[name]) for name, convert in converters.items() if name in options}
