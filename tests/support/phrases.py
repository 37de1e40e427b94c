"""Rows of what transformers tells people: which of them the installed release has, and what they are done with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from tests.support.helpers import PlainModel

LIBRARIES = ("transformers", "hf_compat")
_WRITTEN = ("ACCELERATE_USE_FSDP", "FSDP_", "ACCELERATE_DYNAMO_")
"""Beginnings of the variables that upstream's arguments write, and every later run would read."""
_RELEASE = Version(metadata.version("transformers"))


def rows_of_this_release(table: Mapping[str, Any]) -> list[Any]:
    """Return a parameter for each row of ``table`` whose ``since`` and ``until`` enclose the installed release."""
    return [
        pytest.param(row, id=name) for name, row in table.items() if Version(row.since) <= _RELEASE < Version(row.until)
    ]


def trainer(*, call: str | None = None, **given: Any) -> Callable[[Any, Any], Any]:
    """Return what builds a Trainer and, if ``call`` is named, calls that method."""

    def build(library: Any, args: Any) -> Any:
        made = library.Trainer(PlainModel(), args, **given)
        return getattr(made, call)() if call else made

    return build


@contextmanager
def variables_taken_back() -> Iterator[None]:
    """Context after which the variables are gone that upstream's arguments write for FSDP and compiled models."""
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(_WRITTEN)]:
            del os.environ[name]
