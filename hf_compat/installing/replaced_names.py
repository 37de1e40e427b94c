"""The names of transformers that hf_compat replaces, and the modules that have them."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import hf_compat

__all__ = ["BASES", "is_theirs", "is_watched", "names_in"]

BASES = ("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments")
"""The classes that a library's own derive from: one that derives from transformers' stays on it."""

NOT_REPLACED = {
    "Adafactor": "hf_compat hands on transformers' own",
    "DEFAULT_CALLBACKS": "the module that has it hands on hf_compat's list: `ModuleWithDefaults`",
    "DEFAULT_PROGRESS_CALLBACK": "as well",
    "ExplicitEnum": "the base of many enums of transformers that have nothing to do with its Trainer",
    "GreedyLR": "hf_compat hands on transformers' own",
}
"""Names that hf_compat has too, but that stay transformers', and why."""

_NOT_REPLACED_IN = {
    # A table there has transformers' members for keys; another library's equal them, but have another hash.
    "transformers.optimization": frozenset({"SchedulerType"}),
    "transformers.trainer_optimizer": frozenset({"OptimizerNames"}),
}
"""Names that a module of transformers needs its own of."""


@cache
def _names() -> frozenset[str]:
    return frozenset(hf_compat.__all__) - NOT_REPLACED.keys()


def is_watched(module: str) -> bool:
    """Return whether ``module``, a dotted name, is of transformers and may have the names; its models have none."""
    return module == "transformers" or (
        module.startswith("transformers.") and not module.startswith("transformers.models.")
    )


def names_in(module: ModuleType) -> frozenset[str]:
    """Return the names that ``module`` has and that hf_compat may stand in for there."""
    content = getattr(module, "__dict__", None)
    if not isinstance(content, dict):  # what some libraries put into `sys.modules`
        return frozenset()
    return (_names() & content.keys()) - _NOT_REPLACED_IN.get(content.get("__name__", ""), frozenset())


def is_theirs(value: Any) -> bool:
    """Return whether ``value`` is a class or function of transformers; constants are equal in both libraries."""
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and home.startswith("transformers.")
