"""Splitting one import line in two, with its comments and its layout."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

__all__ = ["split"]

_WIDTH = 88
"""Columns that a new line may have; a longer one gets a line for each name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One imported name with what stands around it."""

    alias: cst.ImportAlias
    starts_line: bool
    """Whether it is the first name on its line."""
    above: tuple[cst.EmptyLine, ...]
    """Lines between the name before and this one: comments, as a rule."""
    behind: cst.TrailingWhitespace | None
    """The rest of its line, with a comment; None if the next name is on the same line."""

    @property
    def is_commented(self) -> bool:
        return any(line.comment for line in self.above) or bool(self.behind and self.behind.comment)


def split(node: cst.ImportFrom, moved: Collection[str], indent: int) -> tuple[cst.ImportFrom | None, cst.ImportFrom]:
    """Return what is left of an import, None if nothing is, and the import of the ``moved`` names from hf_compat.

    Args:
        node: ``from module import names``, not a star.
        moved: Names that move; at least one is in it.
        indent: Columns to the left of the line.
    """
    assert not isinstance(node.names, cst.ImportStar)
    home = cst.Name("hf_compat")
    if all(_name(alias) in moved for alias in node.names):
        return None, node.with_changes(module=home)
    entries = _entries(node)
    going = [entry for entry in entries if _name(entry.alias) in moved]
    staying = [entry for entry in entries if _name(entry.alias) not in moved]
    return _rebuilt(node, staying, entries[-1]), _new(home, going, indent)


def _name(alias: cst.ImportAlias) -> str:
    return str(alias.name.value)


def _entries(node: cst.ImportFrom) -> list[_Entry]:
    assert not isinstance(node.names, cst.ImportStar)
    opening = node.lpar.whitespace_after if node.lpar else None
    before = opening
    closing = node.rpar.whitespace_before if node.rpar else None
    entries = []
    for alias in node.names:
        space = alias.comma.whitespace_after if isinstance(alias.comma, cst.Comma) else closing
        starts_line = isinstance(before, cst.ParenthesizedWhitespace)
        above = tuple(before.empty_lines) if isinstance(before, cst.ParenthesizedWhitespace) else ()
        behind = space.first_line if isinstance(space, cst.ParenthesizedWhitespace) else None
        entries.append(_Entry(alias, starts_line, above, behind))
        before = space
    return entries


def _rebuilt(node: cst.ImportFrom, staying: Sequence[_Entry], last: _Entry) -> cst.ImportFrom:
    """Return ``node`` with the names that stay, in its layout."""
    if node.lpar is None or not any(entry.behind for entry in _entries(node)):
        names = [entry.alias for entry in staying]
        return node.with_changes(names=[*names[:-1], names[-1].with_changes(comma=last.alias.comma)])
    opening = node.lpar.whitespace_after
    breaks = [space for space in (opening, *_spaces(node)) if isinstance(space, cst.ParenthesizedWhitespace)]
    step = breaks[0]
    lpar = node.lpar
    if isinstance(opening, cst.ParenthesizedWhitespace) or staying[0].above:
        first_line = (
            opening.first_line if isinstance(opening, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
        )
        lpar = lpar.with_changes(whitespace_after=_below(step, first_line, staying[0].above))
    names = []
    for entry, following in itertools.pairwise(staying):
        if entry.behind is None and not following.starts_line:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        else:
            comma = cst.Comma(whitespace_after=_below(step, entry.behind or cst.TrailingWhitespace(), following.above))
        names.append(entry.alias.with_changes(comma=comma))
    ending = staying[-1]
    if ending is last:
        return node.with_changes(names=[*names, ending.alias], lpar=lpar)
    closing = breaks[-1] if last.behind is not None else None
    if closing is None and ending.behind is not None and ending.behind.comment:
        closing = _line_break("")
    if closing is None:
        return node.with_changes(names=[*names, ending.alias.with_changes(comma=last.alias.comma)], lpar=lpar)
    space = _below(closing, ending.behind or cst.TrailingWhitespace(), ())
    names.append(ending.alias.with_changes(comma=cst.Comma(whitespace_after=space)))
    rpar = node.rpar and node.rpar.with_changes(whitespace_before=cst.SimpleWhitespace(""))
    return node.with_changes(names=names, lpar=lpar, rpar=rpar)


def _spaces(node: cst.ImportFrom) -> Iterator[cst.BaseParenthesizableWhitespace]:
    """Yield the space behind each name, that before the closing bracket last."""
    assert not isinstance(node.names, cst.ImportStar)
    for alias in node.names:
        if isinstance(alias.comma, cst.Comma):
            yield alias.comma.whitespace_after
    if node.rpar is not None:
        yield node.rpar.whitespace_before


def _new(home: cst.Name, going: Sequence[_Entry], indent: int) -> cst.ImportFrom:
    """Return the import of the names that move: one line if they fit, else a line for each."""
    plain = [entry.alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for entry in going]
    line = cst.ImportFrom(module=home, names=plain)
    text = cst.Module(body=[cst.SimpleStatementLine(body=[line])]).code.rstrip()
    if indent + len(text) <= _WIDTH and not any(entry.is_commented for entry in going):
        return line
    step = _line_break("    ")
    names = []
    for entry, following in zip(going, [*going[1:], None], strict=True):
        below = _line_break("") if following is None else step
        above = following.above if following else ()
        space = _below(below, entry.behind or cst.TrailingWhitespace(), above)
        names.append(entry.alias.with_changes(comma=cst.Comma(whitespace_after=space)))
    lpar = cst.LeftParen(whitespace_after=_below(step, cst.TrailingWhitespace(), going[0].above))
    return cst.ImportFrom(module=home, names=names, lpar=lpar, rpar=cst.RightParen())


def _line_break(last_line: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(last_line))


def _below(
    space: cst.ParenthesizedWhitespace, first_line: cst.TrailingWhitespace, above: Sequence[cst.EmptyLine]
) -> cst.ParenthesizedWhitespace:
    return space.with_changes(first_line=first_line, empty_lines=above)
