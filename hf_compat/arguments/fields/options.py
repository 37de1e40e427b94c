"""Declaration of the fields of ``TrainingArguments``."""

from __future__ import annotations

import inspect
from dataclasses import Field, field
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.enums import FSDPOption
from hf_compat.arguments.fields.field_conflicts import LibraryField

__all__ = ["Config", "Folder", "Fsdp", "Listed", "Settings", "listing", "option"]

# A field accepts more types than it has after ``__post_init__``: a JSON string becomes a dict, a name a list, and a
# missing folder its default. Command-line parsers read the accepted types from the annotations at run time.
if TYPE_CHECKING:
    Config = Any
    Folder = str
    Fsdp = bool | str | list[FSDPOption] | None
    Listed = Any
    Settings = Any
else:
    Config = dict | str | None
    Folder = str | None
    Fsdp = str | None
    Listed = None | str | list[str]
    Settings = dict[str, Any] | str | None

_PARAMETERS = tuple(inspect.signature(Field).parameters)
"""What a field is made of, each also the name of its attribute; the installed Python decides."""


def option(default: object, text: str, *, shown: bool = True, **parser: object) -> Any:
    """Return a dataclass field with help for the command line.

    Args:
        default: Its default.
        text: Its help text.
        shown: Whether its value appears in ``repr``.
        **parser: Additional keywords for argparse.
    """
    return _of_the_library(default=default, repr=shown, metadata={"help": text, **parser})


def listing(text: str) -> Any:
    """Return a dataclass field whose default is an empty list."""
    return _of_the_library(default_factory=list, metadata={"help": text})


def _of_the_library(**given: Any) -> Any:
    """Return the field that ``dataclasses.field`` makes of ``given``, of the library's own class."""
    plain: Any = field(**given)
    return LibraryField(**{name: getattr(plain, name) for name in _PARAMETERS})
