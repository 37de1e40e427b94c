"""``View``: attributes of the Trainer, with transformers' names, whose values are in the run's ``RunCounters``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.run.progress import RunCounters

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["View", "counts_of", "keep_views"]

_UNSET = object()


class View:
    """An attribute of the Trainer that reads and writes a field of its counts.

    Args:
        field: The field's name in :class:`~hf_compat.run.progress.RunCounters`.
        initial: Its first value. Default: that of ``RunCounters``.
    """

    def __init__(self, field: str, initial: object = _UNSET) -> None:
        self.field = field
        self.initial = initial

    def __get__(self, trainer: Trainer | None, owner: type) -> Any:
        return self if trainer is None else getattr(counts_of(trainer), self.field)

    def __set__(self, trainer: Trainer, value: object) -> None:
        setattr(counts_of(trainer), self.field, value)


def counts_of(trainer: Trainer) -> RunCounters:
    """Return the counts of ``trainer``, created on first use, which may be before ``super().__init__()``."""
    counters: RunCounters | None = vars(trainer).get("run_counters")
    if counters is None:
        counters = vars(trainer)["run_counters"] = RunCounters()
        kind = type(trainer)
        for view in (getattr(kind, name) for name in _views(kind)):
            if view.initial is not _UNSET:
                setattr(counters, view.field, view.initial)
    return counters


def keep_views(kind: type) -> None:
    """Make each plain value that the class ``kind`` has under the name of a view that view's first value."""
    for name, value in list(vars(kind).items()):
        inherited = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        if isinstance(inherited, View) and not hasattr(value, "__get__"):
            setattr(kind, name, View(inherited.field, value))


def _views(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, View)]
