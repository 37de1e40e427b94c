"""Logs as the lines that callbacks print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.releases.semantics import resolve_semantics

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["log_line", "shorten_floats", "shortens_floats"]


def shortens_floats(args: TrainingArguments) -> bool:
    """Return whether the release shows floats with 4 significant digits, as 5.0 and later do."""
    return resolve_semantics(getattr(args, "semantics", None)).release.major >= 5


def shorten_floats(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``logs`` with floats as texts of 4 significant digits."""
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}


def log_line(args: TrainingArguments, logs: Mapping[str, Any], max_str_len: int) -> str:
    """Return the line that is written above a bar: ``logs`` without ``total_flos``, as a dict.

    Args:
        args: The arguments of the run.
        logs: What is logged.
        max_str_len: Maximum length of a string; longer ones are not shown.
    """
    shown = {name: _shorten(value, max_str_len) for name, value in logs.items() if name != "total_flos"}
    if shortens_floats(args):
        shown = shorten_floats(shown)
    elif "epoch" in shown:
        shown["epoch"] = round(shown["epoch"], 2)
    return str(shown)


def _shorten(value: Any, max_str_len: int) -> Any:
    if isinstance(value, str) and len(value) > max_str_len:
        return f"[{len(value)} characters, more than `max_str_len={max_str_len}`]"
    return value
