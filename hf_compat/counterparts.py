"""Classes that transformers and hf_compat both have: an object of either counts as one of the other's."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

__all__ = ["CountsCounterparts", "derives_from_counterpart"]

_COUNTERPARTS = {"hf_compat": "transformers", "transformers": "hf_compat"}


class CountsCounterparts(ABCMeta):
    """Metaclass of the classes that scripts test for: ``isinstance`` and ``issubclass`` accept transformers' class too.

    ``isinstance(callback, hf_compat.TrainerCallback)`` is true of a callback of transformers. A class that a script
    derives from one of ours has no counterpart. It is derived from ``ABCMeta``, so that a subclass may be abstract.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        # ABCMeta remembers which classes it has found to be none, and then asks `__subclasscheck__` no more.
        return super().__instancecheck__(instance) or derives_from_counterpart(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or derives_from_counterpart(subclass, cls)


def derives_from_counterpart(subclass: type, kind: type) -> bool:
    """Return whether ``subclass`` is, or derives from, the other library's class of the name of ``kind``."""
    library = _COUNTERPARTS.get(_package(kind))
    return library is not None and any(
        base.__name__ == kind.__name__ and _package(base) == library for base in subclass.__mro__
    )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
