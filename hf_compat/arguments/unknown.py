"""Keywords that no field has: refused with the name of the nearest field."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any, Self

from hf_compat.errors import UnknownArgumentError

__all__ = ["RefusesUnknown"]


def _message(owner: str, unknown: Iterable[str], known: Iterable[str]) -> str:
    names = list(known)
    sentences = []
    for name in unknown:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        sentences.append(f"`{name}` is no argument of {owner}: did you mean `{near}`?")
    return " ".join(sentences)


class _InitSignature:
    """``__signature__`` of a class whose ``__new__`` takes anything: that of its ``__init__``."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class RefusesUnknown:
    """Base of dataclasses whose constructor answers an unknown keyword with the nearest known one.

    A base class rather than a wrapped ``__init__``: the dataclass decorator on a user's subclass writes a new one.
    """

    __signature__ = _InitSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a new instance.

        Raises:
            UnknownArgumentError: If the constructor has no such keyword.
        """
        if kwargs:
            parameters = inspect.signature(cls).parameters
            takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
            unknown = [name for name in kwargs if name not in parameters]
            if unknown and not takes_any:
                raise UnknownArgumentError(_message(cls.__name__, unknown, parameters))
        return super().__new__(cls)
