"""Fields of ``TrainingArguments`` that give way, on a command line, to another dataclass's field of the same name.

Only those that the release lacks: a script for that release may use their names for fields of its own.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from hf_compat.arguments.releases.fields import is_field_of, may_be_lacking
from hf_compat.arguments.releases.semantics import resolve_semantics

__all__ = ["LibraryField", "gives_way", "init_fields"]

_INIT: Any = dataclasses.Field.__dict__["init"]


class LibraryField(dataclasses.Field):  # type: ignore[type-arg]
    """A field of the library's arguments, which parsers skip where it gives way.

    transformers' ``HfArgumentParser`` has no hook for that, but reads of each field whether it is for the constructor,
    ``init``; the reader is found on the stack. For all others ``init`` is what it was declared as.
    """

    __slots__ = ()

    @property
    def init(self) -> bool:
        """Whether it is an argument of the constructor and, to a parser, of the command line."""
        return _is_declared(self) and not gives_way(self, _kinds_of_the_parser(sys._getframe(1)))

    @init.setter
    def init(self, value: bool) -> None:
        _INIT.__set__(self, value)


def _kinds_of_the_parser(frame: FrameType | None) -> list[type[Any]]:
    """Return the dataclasses of the parser whose method runs in ``frame`` or called it; none if there is none."""
    for _ in range(2):  # the method, or a comprehension in it
        if frame is not None:
            kinds = getattr(frame.f_locals.get("self"), "dataclass_types", None)
            if kinds is not None:
                return list(kinds)
            frame = frame.f_back
    return []


def gives_way(field: dataclasses.Field[Any], kinds: Iterable[type[Any]]) -> bool:
    """Return whether ``field`` is the library's, the release lacks it, and another of the dataclasses has its name."""
    if not isinstance(field, LibraryField) or not may_be_lacking(field.name):
        return False
    is_taken = any(field.name in _names_of_options(other) for kind in kinds for other in dataclasses.fields(kind))
    return is_taken and not is_field_of(field.name, resolve_semantics().release)


def init_fields(kind: type[Any], kinds: Iterable[type[Any]]) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of ``kind`` that a parser of ``kinds`` reads."""
    for field in dataclasses.fields(kind):
        if _is_declared(field) and not gives_way(field, kinds):
            yield field


def _is_declared(field: dataclasses.Field[Any]) -> bool:
    """Return whether ``field`` is declared as an argument of the constructor, for any reader."""
    return bool(_INIT.__get__(field))


def _names_of_options(field: dataclasses.Field[Any]) -> set[str]:
    """Return the names of a field's options, with underscores; none of a field of the library."""
    if isinstance(field, LibraryField) or not _is_declared(field):
        return set()
    aliases = field.metadata.get("aliases", ())
    names = [aliases] if isinstance(aliases, str) else aliases
    turned_off = {f"no_{field.name}"} if field.default is True else set()
    return {field.name, *turned_off, *(name.lstrip("-").replace("-", "_") for name in names)}
