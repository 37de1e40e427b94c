"""The values of ``TrainingArguments.optim_args``, a string such as ``"momentum=0.9,nesterov=true"``."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any

from hf_compat.errors import ArgumentsError

__all__ = ["flag", "number_or_text", "parse_optim_args", "pick", "says_yes"]

_FLAGS = {"y": 1, "yes": 1, "t": 1, "true": 1, "on": 1, "1": 1, "n": 0, "no": 0, "f": 0, "false": 0, "off": 0, "0": 0}


def parse_optim_args(text: str | None) -> dict[str, str]:
    """Return the names and values in ``text``; blanks do not count.

    Raises:
        ArgumentsError: If a part of ``text`` is not one name and one value.
    """
    values = {}
    for part in text.replace(" ", "").split(",") if text else ():
        name, _, value = part.partition("=")
        if not name or not value or "=" in value:
            raise ArgumentsError([f"`optim_args={text!r}`: write it as 'name=value,name=value'."])
        values[name] = value
    return values


def flag(value: str) -> int:
    """Return 1 for a word that means yes and 0 for one that means no.

    Raises:
        ArgumentsError: If it is neither.
    """
    try:
        return _FLAGS[value.lower()]
    except KeyError:
        raise ArgumentsError([f"`optim_args` has the value {value!r} where 'true' or 'false' belongs."]) from None


def says_yes(value: str) -> bool:
    """Return whether ``value`` is ``true``, ``1`` or ``yes``; any other word means no."""
    return value.lower() in ("true", "1", "yes")


def number_or_text(value: str) -> Any:
    """Return the number, bool, None or other Python literal that ``value`` spells, or ``value`` itself."""
    try:
        return literal_eval(value)
    except (SyntaxError, ValueError):
        return value


def pick(values: dict[str, str], kinds: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return those of ``values`` that ``kinds`` names, each made what it belongs to be."""
    return {name: convert(values[name]) for name, convert in kinds.items() if name in values}
