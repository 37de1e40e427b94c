"""``hf-compat port``: a script's imports changed to hf_compat's, as a diff, and what else there is to know."""

from __future__ import annotations

import ast
import difflib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_compat.atomic_files import write_bytes
from hf_compat.errors import ReportError, require_package
from hf_compat.tools.explain import Explanation, as_table, explain_call, explain_command_line

__all__ = ["Port", "port_script"]


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


def port_script(script: str, words: Sequence[str] = ()) -> Port:
    """Return a script with its imports changed.

    Args:
        script: A Python file, written for transformers' Trainer.
        words: Its arguments on the command line, if they are to be explained.

    Raises:
        MissingPackageError: If libcst is not installed.
        ParserError: If ``words`` cannot be parsed.
        ReportError: If the file cannot be read, or is not Python.
    """
    require_package("libcst", extra="port", purpose="`hf-compat port`")
    import libcst as cst

    from hf_compat.tools.port.remarks import find_remarks
    from hf_compat.tools.port.rewriting import find_changes, rewritten

    path = Path(script)
    try:
        before = path.read_bytes()
        _check_is_python(before, path.name)
        wrapper = cst.MetadataWrapper(cst.parse_module(before))
    except OSError as error:
        raise ReportError(f"`{script}` cannot be read: {error}") from error
    except (ValueError, SyntaxError, MemoryError, RecursionError, cst.ParserSyntaxError) as error:
        raise ReportError(f"`{script}` is not Python: {str(error) or 'it is nested too deeply.'}") from error
    changes = find_changes(wrapper)
    after = rewritten(wrapper, changes)
    found = find_remarks(wrapper, path.parent)
    explained = [(call.line, explain_call(call.literals, call.computed), call.has_more) for call in found.calls]
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


def _list(title: str, names: Iterable[str]) -> Iterator[str]:
    sorted_names = sorted(names, key=str.lower)
    if sorted_names:
        yield f"{title}: {', '.join(sorted_names)}."


def _tables(explained: Iterable[tuple[int, Sequence[Explanation], bool]]) -> Iterator[str]:
    for line, rows, has_more in explained:
        more = " It passes further ones as `**`: see `hf-compat explain`." if has_more else ""
        if rows:
            yield f"\nLine {line}: training arguments.{more}\n{as_table(rows, readers=False)}"
