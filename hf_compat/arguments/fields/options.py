"""How the fields of ``TrainingArguments`` are declared."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

__all__ = ["Config", "Folder", "Listed", "Settings", "listing", "option"]

# What a field takes is wider than what it holds once ``__post_init__`` has run: a JSON string becomes a dict, a name a
# list, and no folder one. Annotations at run time say what it takes, which is what command-line parsers read.
if TYPE_CHECKING:
    Config = Any
    Folder = str
    Listed = Any
    Settings = Any
else:
    Config = dict | str | None
    Folder = str | None
    Listed = None | str | list[str]
    Settings = dict[str, Any] | str | None


def option(default: Any, text: str, *, shown: bool = True, **parser: Any) -> Any:
    """Return a field.

    Args:
        default: Its default.
        text: Its help on the command line.
        shown: Whether its value appears in ``repr``.
        **parser: Further keywords for argparse.
    """
    return field(default=default, repr=shown, metadata={"help": text, **parser})


def listing(text: str) -> Any:
    """Return a field whose default is an empty list."""
    return field(default_factory=list, metadata={"help": text})
