"""Inputs of an optimizer's builder: the fields of ``TrainingArguments``, the release and the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from torch import nn

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import require_package

__all__ = ["ClassAndKwargs", "OptimizerRequest", "OptimizerSettings", "plain_name"]

ClassAndKwargs = tuple[Callable[..., Any], dict[str, Any]]
"""An optimizer class, or a factory, and its keywords without the parameters and the learning rate."""


class OptimizerSettings(Protocol):
    """The fields of ``TrainingArguments`` that optimizers are built from."""

    @property
    def optim(self) -> str:
        """The optimizer's name, a string or an enum member equal to it."""

    @property
    def optim_args(self) -> str | None:
        """More arguments of the optimizer, ``"name=value,name=value"``."""

    @property
    def learning_rate(self) -> float:
        """The initial learning rate."""

    @property
    def weight_decay(self) -> float:
        """Decoupled weight decay, times the learning rate."""

    @property
    def adam_beta1(self) -> float:
        """Decay of Adam's first moment, per update step."""

    @property
    def adam_beta2(self) -> float:
        """Decay of Adam's second moment, per update step."""

    @property
    def adam_epsilon(self) -> float:
        """Added to the denominator of Adam's update."""

    @property
    def warmup_steps(self) -> float:
        """Update steps of warm-up, for optimizers that have a schedule of their own."""

    @property
    def optim_target_modules(self) -> str | list[str] | None:
        """The linear layers that GaLore and APOLLO project: "all-linear", a regular expression, or names."""

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches per update step."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""


def plain_name(name: str | Enum) -> str:
    """Return the plain string of a name that may be an enum member, ours or transformers'."""
    return str(getattr(name, "value", name))


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """Inputs from which a row of :data:`OPTIMIZERS` builds a class and its keywords."""

    name: str
    """The value of ``optim``."""
    settings: OptimizerSettings
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
