"""What an optimizer is made from: the fields of ``TrainingArguments`` and what is known about the run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from torch import nn

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import require_package

__all__ = ["Built", "OptimizerRequest", "OptimizerSettings", "plain_name"]

Built = tuple[Any, dict[str, Any]]
"""An optimizer's class and its keywords, all but the parameters and the learning rate."""


class OptimizerSettings(Protocol):
    """The fields of ``TrainingArguments`` that optimizers are made from."""

    @property
    def optim(self) -> str:
        """The optimizer's name, a string or an enum member equal to it."""

    @property
    def optim_args(self) -> str | None:
        """Further arguments, ``"name=value,name=value"``."""

    @property
    def learning_rate(self) -> float:
        """The learning rate that the schedule multiplies."""

    @property
    def weight_decay(self) -> float:
        """Share of a weight taken off per update step, times the learning rate."""

    @property
    def adam_beta1(self) -> float:
        """Decay of the running mean of gradients, per update step."""

    @property
    def adam_beta2(self) -> float:
        """Decay of the running mean of squared gradients, per update step."""

    @property
    def adam_epsilon(self) -> float:
        """Added to the root of the mean of squared gradients."""

    @property
    def warmup_steps(self) -> float:
        """Update steps of warm-up, for optimizers that have a schedule of their own."""

    @property
    def optim_target_modules(self) -> str | list[str] | None:
        """The linear layers that GaLore and APOLLO project: "all-linear", a regular expression, or names."""

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches of a window."""

    @property
    def world_size(self) -> int:
        """Processes of the run."""


def plain_name(name: str | Enum) -> str:
    """Return the plain string of a name that may be an enum member, ours or transformers'."""
    return str(getattr(name, "value", name))


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """What a row of :data:`OPTIMIZERS` makes a class and its keywords from."""

    name: str
    """The ``optim`` asked for."""
    settings: OptimizerSettings
    options: dict[str, str]
    """The ``optim_args``, as written."""
    semantics: Semantics
    model: nn.Module | None = None
    """The model to train; some optimizers are built from its modules."""

    @property
    def adam(self) -> dict[str, Any]:
        """The keywords that Adam's relatives share."""
        settings = self.settings
        return {"betas": (settings.adam_beta1, settings.adam_beta2), "eps": settings.adam_epsilon}

    def load(self, module: str, attribute: str, *, extra: str) -> Any:
        """Return ``attribute`` of an optional ``module``.

        Raises:
            MissingPackageError: If it is not installed; ``extra`` installs it.
        """
        return getattr(require_package(module, extra=extra, purpose=f"`optim={self.name!r}`"), attribute)
