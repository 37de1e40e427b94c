"""Changes where a script takes the names of the Trainer from; all else stays as it is written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

import libcst as cst
from libcst.metadata import ParentNodeProvider, PositionProvider, QualifiedNameProvider, ScopeProvider
from libcst.metadata.scope_provider import Access, GlobalScope, ImportAssignment

import hf_compat
from hf_compat.installing.places import NOT_REPLACED, is_watched

# Splitting one import line in two, with its comments and its layout.


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


# The names that a ported script imports from hf_compat, and the modules of transformers that have them.


DEFAULTS = frozenset({"DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK"})
"""Constants that move all the same: a ported script that changes one of them means that of the Trainers it builds."""
_TRAINER_MODULES = ("trainer", "trainer_callback", "trainer_seq2seq", "training_args", "training_args_seq2seq")


@cache
def moved_names() -> frozenset[str]:
    """Return the names that move: classes and functions, but not constants, which are equal in both libraries."""
    functional = {name for name in hf_compat.__all__ if not (name.isupper() or name.startswith("__"))}
    return frozenset(functional - NOT_REPLACED.keys() | DEFAULTS)


def is_moved(module: str, name: str) -> bool:
    """Return whether the ``name`` that a script takes from ``module``, a dotted name, comes from hf_compat then."""
    return is_watched(module) and name in moved_names()


def is_trainer_module(module: str) -> bool:
    """Return whether ``module`` is one of those that make up transformers' Trainer."""
    return module.removeprefix("transformers.") in _TRAINER_MODULES


_FOR_TOOLS = re.compile(r"#\s*(noqa|isort|type:|pylint|ruff|pragma|fmt)")
"""Comments that tell a tool about their line, and that a new line beside it needs too."""
Package: TypeAlias = Literal["instead", "beside", "gone"]
"""Whether ``import hf_compat`` stands in the place of an import or behind it, or neither of them is needed."""
ImportLine: TypeAlias = cst.Import | cst.ImportFrom


@dataclass(slots=True)
class Changes:
    """The changes of a script."""

    splits: dict[cst.ImportFrom, tuple[frozenset[str], int]] = field(default_factory=dict)
    """Imports with names that move → those names, and the columns to the left of the line."""
    attributes: set[cst.Attribute] = field(default_factory=set)
    """Such as ``transformers.Trainer``."""
    with_package: dict[ImportLine, Package] = field(default_factory=dict)
    """Imports of transformers as a whole, through which names that move are read."""
    behind_star: dict[cst.ImportFrom, list[str]] = field(default_factory=dict)
    """Star imports → the names of theirs that move."""
    moved: set[str] = field(default_factory=set)
    stays: set[str] = field(default_factory=set)
    """Names that are taken from transformers as before."""


def absolute_module(node: cst.ImportFrom) -> str | None:
    """Return the dotted name of the module that is imported from; None if it is relative."""
    return None if node.relative or node.module is None else dotted(node.module)


def dotted(node: cst.BaseExpression) -> str:
    """Return a dotted name as it is written; empty if it is none."""
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def find_changes(wrapper: cst.MetadataWrapper) -> Changes:
    """Return what is to be changed in the module of ``wrapper``."""
    finder = _Finder()
    wrapper.visit(finder)
    finder.resolve_packages(wrapper)
    return finder.changes


def rewritten(wrapper: cst.MetadataWrapper, changes: Changes) -> cst.Module:
    """Return the module of ``wrapper`` with ``changes``."""
    return wrapper.module.visit(_Rewriter(changes))


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider, ScopeProvider)

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes()
        self._replaced: set[cst.Attribute] = set()
        """What a script gives another value, such as ``transformers.Trainer``."""
        self._roots: set[cst.CSTNode | None] = set()
        """The first names of the attributes that move, such as the ``transformers`` of ``transformers.Trainer``."""
        self._stars: list[tuple[cst.ImportFrom, int]] = []
        """Star imports, with their lines."""
        self._unbound: dict[str, None] = {}
        self._bound: dict[str, int] = {}
        """The names that move and that the module imports → the line of the last import; a star after it binds them."""

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
        module = absolute_module(node)
        start = self.get_metadata(PositionProvider, node).start
        if module == "hf_compat":
            self._bind(node, start.line)
        if module is None or not is_watched(module):
            return
        if isinstance(node.names, cst.ImportStar):
            self._stars.append((node, start.line))
            return
        names = {str(alias.name.value) for alias in node.names}
        moved = frozenset(name for name in names if is_moved(module, name))
        self.changes.moved |= moved
        self.changes.stays |= names - moved
        if moved:
            self.changes.splits[node] = moved, start.column
            self._bind(node, start.line)

    def _bind(self, node: cst.ImportFrom, line: int) -> None:
        """Note the names that move and that an import binds in the module."""
        is_global = isinstance(self.get_metadata(ScopeProvider, node, None), GlobalScope)
        if is_global and not isinstance(node.names, cst.ImportStar):
            plain = [str(alias.name.value) for alias in node.names if alias.asname is None]
            self._bound |= {name: line for name in plain if name in moved_names()}

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        if isinstance(node.target, cst.Attribute) and node.target.attr.value not in DEFAULTS:
            self._replaced.add(node.target)

    def visit_Attribute(self, node: cst.Attribute) -> None:  # noqa: N802
        root = _root(node)
        if root is None or node in self._replaced:
            return
        modules = self._qualified(node.value)
        for found in self._qualified(node):
            module, _, name = found.rpartition(".")
            if module in modules and is_watched(module) and module.islower():  # no attribute of a class
                self._take(node, root, module, name)

    def _take(self, node: cst.Attribute, root: cst.Name, module: str, name: str) -> None:
        if is_moved(module, name):
            self.changes.attributes.add(node)
            self.changes.moved.add(name)
            self._roots.add(root)
        elif not name.islower():
            self.changes.stays.add(name)

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        scope = self.get_metadata(ScopeProvider, node, None)
        if scope is not None and node.value in moved_names() and not scope[node.value]:
            self._unbound[node.value] = None

    def _qualified(self, node: cst.BaseExpression) -> set[str]:
        return {found.name for found in self.get_metadata(QualifiedNameProvider, node, set())}

    def resolve_packages(self, wrapper: cst.MetadataWrapper) -> None:
        """Find the imports that need ``import hf_compat`` beside them, and what star imports give."""
        for star, star_line in self._stars[-1:]:
            again = [name for name, bound_at in self._bound.items() if bound_at < star_line]
            self.changes.behind_star[star] = [*again, *self._unbound]
            self.changes.moved |= {*self._unbound}
        parents = wrapper.resolve(ParentNodeProvider)
        bound: set[cst.CSTNode] = set()
        for line, all_move in self._imports_of_packages(wrapper).items():
            block = parents[parents[line]]
            if block in bound and not _has_comment(parents[line]):
                self.changes.with_package |= {line: "gone"} if all_move else {}
            else:
                self.changes.with_package[line] = "instead" if all_move else "beside"
            bound.add(block)

    def _imports_of_packages(self, wrapper: cst.MetadataWrapper) -> dict[ImportLine, bool]:
        """Return the imports through which attributes that move are read → whether nothing else needs them."""
        found: dict[ImportLine, bool] = {}
        for scope in {*wrapper.resolve(ScopeProvider).values()}:
            for assignment in scope.assignments if scope else ():
                line = assignment.node if isinstance(assignment, ImportAssignment) else None
                moves = [_first_name(access) in self._roots for access in assignment.references]
                if isinstance(line, ImportLine) and any(moves):
                    found[line] = isinstance(line, cst.Import) and len(line.names) == 1 and all(moves)
        positions = wrapper.resolve(PositionProvider)
        return {line: found[line] for line in sorted(found, key=lambda line: positions[line].start.line)}


def _has_comment(line: cst.CSTNode) -> bool:
    if not isinstance(line, cst.SimpleStatementLine):
        return True
    return line.trailing_whitespace.comment is not None or any(each.comment for each in line.leading_lines)


def _root(node: cst.Attribute) -> cst.Name | None:
    value = node.value
    while isinstance(value, cst.Attribute):
        value = value.value
    return value if isinstance(value, cst.Name) else None


def _first_name(access: Access) -> cst.CSTNode | None:
    return _root(access.node) if isinstance(access.node, cst.Attribute) else access.node


class _Rewriter(cst.CSTTransformer):
    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self._changes = changes

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:  # noqa: N802
        if original_node not in self._changes.attributes:
            return updated_node
        return updated_node.with_changes(value=cst.Name("hf_compat"))

    def leave_Import(  # noqa: N802
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.FlattenSentinel[cst.BaseSmallStatement] | cst.RemovalSentinel:
        match self._changes.with_package.get(original_node):
            case "instead":
                return updated_node.with_changes(names=_import_package().names)
            case "beside":
                return cst.FlattenSentinel([updated_node, _import_package()])
            case "gone":
                return cst.RemoveFromParent()
        return updated_node

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.BaseSmallStatement]:
        lines: list[cst.BaseSmallStatement] = [updated_node]
        if original_node in self._changes.splits:
            lines = [line for line in split(updated_node, *self._changes.splits[original_node]) if line is not None]
        if self._changes.behind_star.get(original_node):
            names = [cst.ImportAlias(cst.Name(name)) for name in self._changes.behind_star[original_node]]
            lines.append(cst.ImportFrom(module=cst.Name("hf_compat"), names=names))
        if self._changes.with_package.get(original_node) == "beside":
            lines.append(_import_package())
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        """Give each of the imports that one has become a line of its own."""
        if not updated_node.body:
            return cst.RemoveFromParent()
        if len(original_node.body) != 1 or len(updated_node.body) == 1:
            return updated_node
        first, *others = updated_node.body
        comment = updated_node.trailing_whitespace.comment
        is_for_tools = comment is not None and _FOR_TOOLS.match(comment.value)
        behind = updated_node.trailing_whitespace if is_for_tools else cst.TrailingWhitespace()
        lines = [cst.SimpleStatementLine(body=[other], trailing_whitespace=behind) for other in others]
        return cst.FlattenSentinel([updated_node.with_changes(body=[first]), *lines])


def _import_package() -> cst.Import:
    return cst.Import(names=[cst.ImportAlias(cst.Name("hf_compat"))])
