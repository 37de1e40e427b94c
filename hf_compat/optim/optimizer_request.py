"""Inputs of an optimizer's builder: the fields of ``TrainingArguments``, the release and the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import require_package

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["ClassAndKwargs", "OptimizerRequest", "plain_name"]

ClassAndKwargs = tuple[Callable[..., Any], dict[str, Any]]
"""An optimizer class, or a factory, and its keywords without the parameters and the learning rate."""


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
