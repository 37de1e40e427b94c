"""Writing pictures and self-contained pages: a file that was not made here is never replaced unasked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from hf_compat.atomic_files import write_bytes
from hf_compat.errors import ReportError

__all__ = ["MADE_BY", "check_targets", "inline_svg", "page", "table", "write_files"]

MADE_BY = "Made by hf-compat"
"""Stands near the beginning of each file that is made here."""
_HEAD = 8192
"""Bytes of a file in which it is looked for."""

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1c1c; background: #fff;
  max-width: 1080px; margin: 0 auto; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0 12px; } code, td.number { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
table { border-collapse: collapse; width: 100%; } div.wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid #ddd;
  overflow-wrap: anywhere; }
th { font-weight: 600; border-bottom: 2px solid #888; } td.number, th.number { text-align: right; white-space: nowrap; }
tr.differs td { background: #fdecea; } tr.differs td:first-child { border-left: 4px solid #b3261e; padding-left: 6px; }
figure { margin: 12px 0; } svg { width: 100%; height: auto; }
.equal { color: #0f6b38; } .different { color: #b3261e; } .note { color: #555; }
"""


def check_targets(targets: Sequence[Path], *, force: bool) -> None:
    """Refuse targets that cannot be written, or would replace what was not made here.

    Raises:
        ReportError: If there is one.
    """
    for target in targets:
        if not target.parent.is_dir():
            raise ReportError(f"`{target}` cannot be written: the folder `{target.parent}` does not exist.")
        if target.is_dir():
            raise ReportError(f"`{target}` is a folder: name a file.")
        if os.path.lexists(target) and not force and not _is_own(target):
            raise ReportError(
                f"`{target}` already exists and was not written by hf-compat. Choose another name, or pass `--force`."
            )


def write_files(contents: Mapping[Path, bytes]) -> list[str]:
    """Write each file, whole or not at all, and return what was done, a sentence each.

    Raises:
        ReportError: If one cannot be written.
    """
    done = []
    for target, content in contents.items():
        word = "Replaced" if os.path.lexists(target) else "Wrote"
        try:
            write_bytes(target, content)
        except OSError as error:
            raise ReportError(f"`{target}` cannot be written: {error}") from error
        done.append(f"{word} `{target}`.")
    return done


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MADE_BY.encode() in file.read(_HEAD)
    except OSError:
        return False


def page(title: str, body: str) -> str:
    """Return an HTML page that loads nothing from elsewhere.

    Args:
        title: Plain text.
        body: HTML.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" '
        f'content="{MADE_BY}">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, marked: Sequence[bool] = (), text_columns: int = 1
) -> str:
    """Return an HTML table.

    Args:
        headings: Plain text.
        rows: Plain text, as many cells each as there are headings.
        marked: Which rows are marked as different.
        text_columns: Number of columns, from the left, that are no numbers.
    """
    marks = marked or [False] * len(rows)
    head = _row("th", headings, text_columns, is_marked=False)
    body = [_row("td", row, text_columns, is_marked=mark) for row, mark in zip(rows, marks, strict=True)]
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n' + "\n".join(body) + "\n</tbody></table></div>"


def _row(tag: str, cells: Sequence[str], text_columns: int, *, is_marked: bool) -> str:
    inside = "".join(
        f"<{tag}>{escape(cell)}</{tag}>" if index < text_columns else f'<{tag} class="number">{escape(cell)}</{tag}>'
        for index, cell in enumerate(cells)
    )
    return f'<tr class="differs">{inside}</tr>' if is_marked else f"<tr>{inside}</tr>"


def inline_svg(svg: str, description: str) -> str:
    """Return an SVG file as a part of a page, with a description for those who cannot see it."""
    drawing = re.sub(r"\A.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
    return f'<figure role="img" aria-label="{escape(description)}">\n{drawing}</figure>'
