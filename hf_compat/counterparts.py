"""Classes for which objects of transformers' class of the same name count as their own."""

from __future__ import annotations

from abc import ABCMeta

__all__ = ["CountsCounterparts"]


class CountsCounterparts(ABCMeta):
    """Metaclass of the classes that scripts test for: ``isinstance`` and ``issubclass`` accept transformers' class too.

    ``isinstance(callback, hf_compat.TrainerCallback)`` is true of a callback of transformers. A class that a script
    derives from one of ours has no counterpart. It is derived from ``ABCMeta``, so that a subclass may be abstract.
    """

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or _has_counterpart(cls, subclass)


def _has_counterpart(kind: type, subclass: type) -> bool:
    return kind.__module__.startswith("hf_compat.") and any(
        base.__name__ == kind.__name__ and base.__module__.startswith("transformers.") for base in subclass.__mro__
    )
