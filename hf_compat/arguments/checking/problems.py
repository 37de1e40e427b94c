"""Problems of one ``TrainingArguments``, collected first and raised in one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from hf_compat.errors import ArgumentsError, ArgumentTypesError, UnsupportedArgumentsError
from hf_compat.masking import masked_text

__all__ = ["Problem", "raise_all"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One field, its value, the reason and the remedy."""

    field: str
    value: object
    text: str
    """The reason and the remedy, printed after the value."""
    unsupported: bool = False
    """Whether the value is valid but not supported."""
    wrong_type: bool = False
    """Whether the value is of a type that cannot be used."""
    also: tuple[type[Exception], ...] = ()
    """What transformers raises for it, if that is none of the classes of :mod:`hf_compat.errors`."""
    written: str | None = None
    """What the user wrote, if that is not the field."""

    def __str__(self) -> str:
        if self.written is not None:
            return f"`{self.written}`: {self.text}"
        value = self.value.value if isinstance(self.value, Enum) else self.value
        # Tokens do not belong in logs; a dict, an address or JSON may contain some.
        shown = f"<{self.field.upper()}>" if self.field.endswith("_token") else repr(value)
        return masked_text(f"`{self.field}={shown}`: {self.text}")


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one error that lists all ``problems``; return if there are none.

    Raises:
        UnsupportedArgumentsError: If every problem is a value that is not supported.
        ArgumentTypesError: If a value is of a wrong type.
        ArgumentsError: If there is any other.
    """
    found = tuple(problems)
    if found:
        texts, fields = [str(problem) for problem in found], [problem.field for problem in found]
        others = (kind for problem in found for kind in problem.also)
        raise _kind_of(found).also(*others)(texts, fields=fields)


def _kind_of(found: Sequence[Problem]) -> type[ArgumentsError]:
    if all(problem.unsupported for problem in found):
        return UnsupportedArgumentsError
    return ArgumentTypesError if any(problem.wrong_type for problem in found) else ArgumentsError
