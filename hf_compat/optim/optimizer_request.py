"""Inputs of an optimizer's builder: fields of ``TrainingArguments`` such as ``optim_args``, the release, the model."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import ArgumentsError, require_package

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = [
    "ClassAndKwargs",
    "OptimizerRequest",
    "convert_options",
    "parse_bool",
    "parse_flag",
    "parse_literal",
    "parse_optim_args",
    "plain_name",
]

ClassAndKwargs = tuple[Callable[..., Any], dict[str, Any]]
"""An optimizer class, or a factory, and its keywords without the parameters and the learning rate."""

_FLAGS = {"y": 1, "yes": 1, "t": 1, "true": 1, "on": 1, "1": 1, "n": 0, "no": 0, "f": 0, "false": 0, "off": 0, "0": 0}


def plain_name(name: str | Enum) -> str:
    """Return the plain string of a name that may be an enum member, ours or transformers'."""
    return str(getattr(name, "value", name))


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """Inputs from which a row of :data:`OPTIMIZERS` builds a class and its keywords."""

    name: str
    """The value of ``optim``."""
    settings: TrainingArguments
    options: dict[str, str]
    """The ``optim_args``, names to unparsed values."""
    semantics: Semantics
    model: nn.Module | None = None
    """The model to train; some optimizers are built from its modules."""

    @property
    def adam(self) -> dict[str, Any]:
        """The keywords of Adam and its variants."""
        settings = self.settings
        return {"betas": (settings.adam_beta1, settings.adam_beta2), "eps": settings.adam_epsilon}

    def load(self, module: str, attribute: str, *, extra: str) -> Callable[..., Any]:
        """Return ``attribute``, a class, of an optional ``module``.

        Raises:
            MissingPackageError: If it is not installed; ``extra`` installs it.
        """
        loaded: Callable[..., Any] = getattr(
            require_package(module, extra=extra, purpose=f"`optim={self.name!r}`"), attribute
        )
        return loaded


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
