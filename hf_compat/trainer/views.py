"""``View``: attributes of the Trainer, with transformers' names, whose values are in the run's ``Counts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.run.progress import Counts

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["View", "counts_of"]


def counts_of(trainer: Trainer) -> Counts:
    """Return the counts of ``trainer``, created on first use, which may be before ``super().__init__()``."""
    counts: Counts = vars(trainer).setdefault("_counts", Counts())
    return counts


class View:
    """An attribute of the Trainer that reads and writes a field of its counts.

    Args:
        field: The field's name in :class:`~hf_compat.run.progress.Counts`.
    """

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, trainer: Trainer | None, owner: type) -> Any:
        return self if trainer is None else getattr(counts_of(trainer), self._field)

    def __set__(self, trainer: Trainer, value: object) -> None:
        setattr(counts_of(trainer), self._field, value)
