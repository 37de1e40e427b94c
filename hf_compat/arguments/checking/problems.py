"""Problems of one ``TrainingArguments``, collected first and raised in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError

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

    def __str__(self) -> str:
        value = self.value.value if isinstance(self.value, Enum) else self.value
        # Tokens do not belong in logs.
        shown = f"<{self.field.upper()}>" if self.field.endswith("_token") else repr(value)
        return f"`{self.field}={shown}`: {self.text}"


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one error that lists all ``problems``; return if there are none.

    Raises:
        UnsupportedArgumentsError: If every problem is a value that is not supported.
        ArgumentsError: If there is any other.
    """
    found = tuple(problems)
    if found:
        kind = UnsupportedArgumentsError if all(problem.unsupported for problem in found) else ArgumentsError
        raise kind([str(problem) for problem in found], fields=[problem.field for problem in found])
