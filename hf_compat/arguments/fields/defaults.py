"""The defaults of the fields of ``TrainingArguments``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

__all__ = ["defaults"]


@cache
def defaults() -> Mapping[str, object]:
    """Return the default of each field of ``TrainingArguments``; a subclass may have another one."""
    from hf_compat.arguments.training_arguments import TrainingArguments  # is built on the rules, which compare values

    return MappingProxyType(
        {
            item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            for item in dataclasses.fields(TrainingArguments)
        }
    )
