"""Keywords of ``lightning.Trainer`` for Trainers that others construct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

__all__ = ["lightning_keywords", "with_keywords_for_all"]

_for_all: ContextVar[Mapping[str, Any]] = ContextVar("keywords for every Trainer", default=MappingProxyType({}))


@contextmanager
def lightning_keywords(**keywords: Any) -> Iterator[None]:
    """Return a context in which every Trainer that is made gets ``keywords`` of ``lightning.Trainer``.

    For classes of libraries, whose constructors have no argument ``lightning``, and for Trainers that a library makes
    itself. A Trainer keeps its keywords after the block. Of a keyword that is given twice, the inner block's is taken,
    and that of a Trainer's own ``lightning`` before both.

    Args:
        **keywords: As in ``Trainer(lightning={...})``: ``logger=CSVLogger("logs")``, ``profiler="simple"``.
    """
    token = _for_all.set(with_keywords_for_all(keywords))
    try:
        yield
    finally:
        _for_all.reset(token)


def with_keywords_for_all(own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a Trainer's ``own`` keywords with those of the blocks of :func:`lightning_keywords` around it."""
    return {**_for_all.get(), **(own or {})}
