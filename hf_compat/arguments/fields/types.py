"""The argparse keywords for a dataclass field, by its type."""

from __future__ import annotations

import dataclasses
import json
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from hf_compat.errors import ParserError

__all__ = ["options_of", "string_to_bool"]

Options = tuple[tuple[str, ...], dict[str, Any]]
"""Names of an option, and keywords of ``add_argument``."""

_YES = frozenset({"yes", "true", "t", "y", "1"})
_NO = frozenset({"no", "false", "f", "n", "0"})


def string_to_bool(v: object) -> bool:
    """Return whether ``v`` says yes: a bool, or yes, true, t, y or 1 in any case; else it has to say no.

    Raises:
        ArgumentTypeError: If it says neither.
    """
    word = str(v).lower()
    if word not in _YES | _NO:
        raise ArgumentTypeError(f"{v!r} is not a bool: write true or false.")
    return word in _YES


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object: write it in braces.")
    return value


def _read_type(name: str, hint: object) -> object:
    """Return the type that command-line values are parsed as; an optional bool stays optional.

    Of a union it is the first type or, if that is None or (in a union without None) ``str``, the second; of an
    optional union of several types the second. transformers' own fields are declared in the order that suits this.

    Raises:
        ParserError: If it is a union of several types without ``str``.
    """
    if get_origin(hint) not in (Union, types.UnionType) or _is_switch(hint):
        return hint
    members = get_args(hint)
    is_optional = types.NoneType in members
    if str not in members and not (is_optional and len(members) == 2):
        raise ParserError(
            f"`{name}` has the type {hint}, which one value cannot be parsed as; use `X | None`, or add `str`."
        )
    first, second = members[:2]
    return first if second is (types.NoneType if is_optional else str) else second


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the keyword for a field whose option is not given: its default, or that it is required."""
    if field.default is not dataclasses.MISSING:
        return {"default": field.default}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory()}
    return {"required": True}


def _choice(field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    choices = get_args(kind) if get_origin(kind) is Literal else [member.value for member in kind]
    by_text = {str(choice): choice for choice in choices}
    return {"choices": choices, "type": lambda text: by_text.get(text, text), **_default(field)}


def _switch(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    given = _default(field)
    is_optional = kind is not bool
    if is_optional and given.get("default") is None:
        return {"type": string_to_bool}
    return {"type": string_to_bool, "default": False, "nargs": "?", "const": True, **_without(given, "required")}


def _without(keywords: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if key != name}


def _list(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    (item,) = get_args(kind) or (str,)
    given = _default(field)
    if field.default is not dataclasses.MISSING:
        given = {"default": None}  # a default that is not a list (an empty string, None) would become one item
    return {"type": item, "nargs": "+", **given}


def _dict(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    return {"type": _json_object, **_default(field)}


def _plain(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    return {"type": kind, **_default(field)}


def _is_choice(kind: object) -> bool:
    return get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def _is_switch(kind: object) -> bool:
    return kind is bool or bool(kind == bool | None)


def _is_a(base: type) -> Callable[[object], bool]:
    def check(kind: object) -> bool:
        origin = get_origin(kind) or kind
        return isinstance(origin, type) and issubclass(origin, base)

    return check


_KINDS: tuple[tuple[Callable[[object], bool], Callable[[dataclasses.Field[Any], Any], dict[str, Any]]], ...] = (
    (_is_choice, _choice),
    (_is_switch, _switch),
    (_is_a(list), _list),
    (_is_a(dict), _dict),
    (lambda kind: True, _plain),
)
"""A test for a type, and its argparse keywords; the first match is used."""


def options_of(field: dataclasses.Field[Any], hint: object) -> Iterator[Options]:
    """Yield the option of a field, then the one that turns it off if it is a bool with the default True.

    Args:
        field: The field; its metadata are additional keywords, with additional names in ``aliases``.
        hint: Its resolved type.

    Raises:
        ParserError: If the type is a union that one value cannot be parsed as.
    """
    kind = _read_type(field.name, hint)
    keywords = dict(field.metadata)
    aliases = keywords.pop("aliases", [])
    keywords_of = next(keywords_of for matches, keywords_of in _KINDS if matches(kind))
    names = _spellings(field.name)
    yield (*names, *([aliases] if isinstance(aliases, str) else aliases)), {**keywords, **keywords_of(field, kind)}
    if field.default is True and _is_switch(kind):
        negated = {**keywords, "action": "store_false", "dest": field.name, "default": False}
        yield (f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}"), negated


def _spellings(name: str) -> tuple[str, ...]:
    return (f"--{name}", f"--{name.replace('_', '-')}") if "_" in name else (f"--{name}",)
