"""Support of a component of Lightning's in a run: the form of the tables of callbacks and strategies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Support", "refused", "works"]


@dataclass(frozen=True, slots=True)
class Support:
    """Support of a component of Lightning's.

    Attributes:
        works: Whether it does its work; if not, a Trainer refuses it.
        note: What it does here; of a refused one, the reason.
        instead: What to use instead of a refused one.
        refuses: Settings of one that works which are refused, with the reason and what to use instead.
    """

    works: bool
    note: str
    instead: str = ""
    refuses: str = ""


def works(note: str, refuses: str = "") -> Support:
    """Return the row of a component that does its work."""
    return Support(works=True, note=note, refuses=refuses)


def refused(note: str, instead: str) -> Support:
    """Return the row of a component that a Trainer refuses."""
    return Support(works=False, note=note, instead=instead)
