"""``hf-compat port``: a script's imports changed to hf_compat's, as a diff, and what else there is to know."""

from __future__ import annotations

import ast
import difflib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import PositionProvider, QualifiedNameProvider

from hf_compat.atomic_files import write_bytes
from hf_compat.errors import ReportError
from hf_compat.installing.places import BASES, is_watched
from hf_compat.overriding import NEVER_CALLED
from hf_compat.tools.explain import Explanation, as_table, explain_call, explain_command_line
from hf_compat.tools.port.rewriting import (
    DEFAULTS,
    absolute_module,
    dotted,
    find_changes,
    is_moved,
    is_trainer_module,
    rewritten,
)


@dataclass(frozen=True, slots=True)
class Port:
    """A script with its imports changed."""

    script: Path
    before: bytes
    after: bytes
    encoding: str
    remarks: tuple[str, ...]
    """Paragraphs on what stays, what is not supported and what becomes of its arguments."""
    has_problems: bool
    """Whether the ported script will not do what it did, or has arguments that are not supported."""

    @property
    def diff(self) -> str:
        """Return the change in the unified form; empty if there is none."""
        before, after = (text.decode(self.encoding).splitlines(keepends=True) for text in (self.before, self.after))
        path = os.path.relpath(self.script)
        name = Path(path if not path.startswith("..") else self.script).as_posix().lstrip("/")
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replace the script, which keeps its permissions, and stays where a link to it leads.

        Raises:
            ReportError: If it cannot be written, or is no longer what was read.
        """
        target = self.script.resolve()
        try:
            if target.read_bytes() != self.before:
                raise ReportError(f"`{self.script}` has changed in the meantime: port it again.")
            write_bytes(target, self.after, keep_mode=True)
        except OSError as error:
            raise ReportError(f"`{self.script}` cannot be written: {error}") from error


def port_script(script: str, words: Sequence[str] = (), *, installs: bool = False) -> Port:
    """Return a script with its imports changed.

    Args:
        script: A Python file, written for transformers' Trainer.
        words: Its arguments on the command line, if they are to be explained.
        installs: Whether it runs unchanged, with hf_compat in place of transformers' classes: then nothing is said of
            other files and libraries, which get hf_compat's too.

    Raises:
        ParserError: If ``words`` cannot be parsed.
        ReportError: If the file cannot be read, or is not Python.
    """
    path = Path(script)
    try:
        before = path.read_bytes()
        _check_is_python(before, path.name)
        wrapper = cst.MetadataWrapper(cst.parse_module(before))
    except OSError as error:
        raise ReportError(f"`{script}` cannot be read: {error.strerror or error}") from error
    except (ValueError, SyntaxError, MemoryError, RecursionError, cst.ParserSyntaxError) as error:
        raise ReportError(f"`{script}` is not Python: {str(error) or 'it is nested too deeply.'}") from error
    changes = find_changes(wrapper)
    after = rewritten(wrapper, changes)
    found = find_remarks(wrapper, path.parent, installs=installs)
    explained = [(call.line, _explained(call), call.has_more) for call in found.calls]
    remarks = [
        *_list("From hf_compat now", changes.moved),
        *_list("From transformers as before", changes.stays),
        *(f"Line {remark.line}: {remark.text}" for remark in found.remarks),
        *_tables(explained),
    ]
    rows = [row for _, table, _ in explained for row in table]
    if words or path.with_suffix(".args").is_file():
        on_command_line = explain_command_line([script, *words])
        remarks.append(f"\nIts arguments on the command line:\n{as_table(on_command_line, readers=False)}")
        rows += on_command_line
    has_problems = any(remark.is_problem for remark in found.remarks) or any(row.problems for row in rows)
    return Port(path, before, after.bytes, after.encoding, tuple(remarks), has_problems)


def _check_is_python(source: bytes, name: str) -> None:
    """Raise the error of Python's own parser, if it has one; libcst crashes on code that is nested too deeply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of strings in it, which are the script's own concern
        ast.parse(source, name)


def _explained(call: Call) -> list[Explanation]:
    """Return the effect of the arguments of ``call``; one that no release has is a problem, if the class has none."""
    rows = explain_call(call.literals, call.computed)
    if call.is_of_own_class:
        return rows
    wrong = ("`TrainingArguments` does not take it.",)
    return [replace(row, where="nowhere", problems=wrong) if row.handling == "unknown" else row for row in rows]


def _list(title: str, names: Iterable[str]) -> Iterator[str]:
    sorted_names = sorted(names, key=str.lower)
    if sorted_names:
        yield f"{title}: {', '.join(sorted_names)}."


def _tables(explained: Iterable[tuple[int, Sequence[Explanation], bool]]) -> Iterator[str]:
    for line, rows, has_more in explained:
        more = " It passes further ones as `**`: see `hf-compat explain`." if has_more else ""
        if rows:
            yield f"\nLine {line}: training arguments.{more}\n{as_table(rows, readers=False)}"


# Remarks on a script besides the change of its imports.


_HAVE_OWN_TRAINERS = ("hf_compat", "lightning", "pytorch_lightning", "transformers")
"""Packages whose Trainer is nobody's subclass."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence on a line of a script."""

    line: int
    text: str
    is_problem: bool
    """Whether the ported script will not do what it did."""


@dataclass(slots=True)
class Call:
    """One call of ``TrainingArguments`` in a script."""

    line: int
    literals: dict[str, Any] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    """Fields whose values the script computes → as it is written."""
    has_more: bool = False
    """Whether it passes ``**keywords`` too."""
    is_of_own_class: bool = False
    """Whether the class is one of the script's, which may have fields of its own."""


@dataclass(slots=True)
class Remarks:
    """All that was found, in the order of the script."""

    remarks: list[Remark] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def find_remarks(wrapper: cst.MetadataWrapper, folder: Path, *, installs: bool) -> Remarks:
    """Return what is to be said of the module of ``wrapper``, a script in ``folder``; ``installs`` as in a port."""
    finder = _Finder(folder, installs=installs)
    wrapper.visit(finder)
    return Remarks(sorted(finder.remarks, key=lambda remark: remark.line), finder.calls)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, folder: Path, *, installs: bool) -> None:
        super().__init__()
        self._installs = installs
        self.remarks: list[Remark] = []
        self.calls: list[Call] = []
        self._folder = folder
        self._trainers: set[str] = set()
        """Classes of the script that derive from the Trainer."""
        self._arguments: set[str] = set()
        """Classes of the script that derive from ``TrainingArguments``."""

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        for base in node.bases:
            known = self._base(base.value)
            if known is not None:
                (self._trainers if known.endswith("Trainer") else self._arguments).add(node.name.value)
        if node.name.value in self._trainers:
            for statement in node.body.body:
                if isinstance(statement, cst.FunctionDef) and statement.name.value in NEVER_CALLED:
                    name = statement.name.value
                    self._add(statement, f"`{node.name.value}.{name}` would never be called: {NEVER_CALLED[name]}.")

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        known = self._base(node.func)
        if known is None or known.endswith("Trainer"):
            return
        call = Call(self._line(node), is_of_own_class=not self._arguments.isdisjoint(self._qualified(node.func)))
        for argument in node.args:
            if argument.star == "**":
                call.has_more = True
            elif argument.keyword is not None:
                self._note(call, argument.keyword.value, argument.value)
            elif not argument.star and argument is node.args[0]:
                self._note(call, "output_dir", argument.value)
        self.calls.append(call)

    def _note(self, call: Call, name: str, value: cst.BaseExpression) -> None:
        written = cst.Module(body=()).code_for_node(value)
        try:
            call.literals[name] = ast.literal_eval(written)
        except ValueError:
            call.computed[name] = written

    def _base(self, node: cst.BaseExpression) -> str | None:
        """Return which of ``Trainer`` and ``TrainingArguments``, or the like, a class is or derives from."""
        for name in self._qualified(node):
            home, _, last = name.rpartition(".")
            if last in BASES and (is_watched(home) or home.partition(".")[0] == "hf_compat"):
                return last
            if name in self._trainers:
                return "Trainer"
            if name in self._arguments:
                return "TrainingArguments"
        return None

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        if not isinstance(node.target, cst.Attribute) or node.target.attr.value in DEFAULTS:
            return
        for name in self._qualified(node.target):
            home, _, last = name.rpartition(".")
            if is_moved(home, last) or is_trainer_module(home):
                self._add(
                    node,
                    f"`{dotted(node.target)} = ...` has no effect: hf_compat does not use this attribute. Override a "
                    "method of Trainer instead.",
                )

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
        module = absolute_module(node)
        if self._add_own_file(node, module or "", len(node.relative)):
            return
        if module is not None and not isinstance(node.names, cst.ImportStar):
            names = [str(alias.name.value) for alias in node.names]
            self._add_library(node, module.partition(".")[0], [name for name in names if name.endswith("Trainer")])

    def visit_Import(self, node: cst.Import) -> None:  # noqa: N802
        for alias in node.names:
            self._add_own_file(node, dotted(alias.name), 0)

    def visit_Attribute(self, node: cst.Attribute) -> None:  # noqa: N802
        name = node.attr.value
        if name.endswith("Trainer") and isinstance(node.value, cst.Name):
            for module in self._qualified(node.value):
                if f"{module}.{name}" in self._qualified(node):
                    self._add_library(node, module.partition(".")[0], [name])

    def _add_library(self, node: cst.CSTNode, library: str, names: list[str]) -> None:
        if not names or library in _HAVE_OWN_TRAINERS:
            return
        listed = ", ".join(f"`{name}`" for name in names)
        if self._installs:
            told = f"{listed} of {library} gets hf_compat's Trainer too, if it derives from transformers'."
            self._add(node, told, is_problem=False)
        else:
            self._add(
                node,
                f"{listed} of {library} is not part of hf_compat. If it derives from transformers' Trainer, start the "
                "unchanged script with `hf-compat run`, or call `hf_compat.install()` above this line.",
            )

    def _add_own_file(self, node: cst.CSTNode, module: str, level: int) -> bool:
        """Say so and return True if a module is a file beside the script that may use the Trainer."""
        folder = self._folder.joinpath(*[".."] * max(0, level - 1))
        for name in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
            if module and (folder / name).is_file() and b"Train" in (folder / name).read_bytes():
                if not self._installs:
                    self._add(node, f"`{name}` is imported: port it too if it uses the Trainer.", is_problem=False)
                return True
        return False

    def _qualified(self, node: cst.CSTNode) -> Iterator[str]:
        yield from {found.name for found in self.get_metadata(QualifiedNameProvider, node, set())}

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def _add(self, node: cst.CSTNode, text: str, *, is_problem: bool = True) -> None:
        remark = Remark(self._line(node), text, is_problem)
        if remark not in self.remarks:
            self.remarks.append(remark)
