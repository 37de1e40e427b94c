"""Names that are attributes of several modules, but have one value, which may be assigned through each of them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__all__ = ["ModuleWithDefaults"]

_HOME = "hf_compat.callbacks.default_callbacks"


def _shared(name: str) -> property:
    def get(_: ModuleType) -> Any:
        return getattr(importlib.import_module(_HOME), name)

    def assign(_: ModuleType, value: Any) -> None:
        setattr(importlib.import_module(_HOME), name, value)

    return property(get, assign, doc=f"As in ``{_HOME}``.")


class ModuleWithDefaults(ModuleType):
    """The class of the modules in which scripts find the default callbacks, as in ``transformers.trainer``.

    Scripts assign to them there. A module can answer for a name itself, but only its class can take an assignment.
    """

    DEFAULT_CALLBACKS = _shared("DEFAULT_CALLBACKS")
    DEFAULT_PROGRESS_CALLBACK = _shared("DEFAULT_PROGRESS_CALLBACK")
