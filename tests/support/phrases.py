"""Rows of what transformers tells people: which of them the installed release has, and what they are done with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from tests.support.helpers import PlainModel

LIBRARIES = ("transformers", "hf_compat")
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
