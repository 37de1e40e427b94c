"""Fields of ``TrainingArguments`` that a module reads, and modules that read a field, from their syntax trees."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from hf_compat.arguments import FIELD_RULES

__all__ = ["fields_read", "readers_of"]

_FIELDS = {rule.field for rule in FIELD_RULES}
_ARGUMENTS = {"args", "training_args", "arguments"}
"""Names of variables and attributes that hold the arguments."""
_CLASSES = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_REQUEST = "OptimizerRequest"
"""The class that hands optimizers their fields as its ``settings``."""
_PACKAGE = Path(__file__).parents[1]


def readers_of(field: str) -> tuple[str, ...]:
    """Return the files outside ``arguments/`` that read ``field`` off the arguments, sorted; paths in the package."""
    files = [path.relative_to(_PACKAGE).as_posix() for path in sorted(_PACKAGE.rglob("*.py"))]
    outside = [file for file in files if not file.startswith("arguments/")]
    return tuple(sorted(file for file in outside if field in _text(file) and field in _fields_of(file)))


@cache
def _text(file: str) -> str:
    return (_PACKAGE / file).read_text("utf-8")


@cache
def _fields_of(file: str) -> set[str]:
    return fields_read(ast.parse(_text(file)))


def fields_read(tree: ast.AST, *more_names: str) -> set[str]:
    """Return the fields that a module or function reads off the arguments, or off variables among ``more_names``.

    Where it reads names out of a table with ``getattr``, they are all its string constants that are fields.
    """
    names, found = _names_of_arguments(tree) | set(more_names), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _last_name(node.value) in names:
            found.add(node.attr)
        elif isinstance(node, ast.Call) and _last_name(node.func) == "getattr" and _last_name(node.args[0]) in names:
            literal = isinstance(node.args[1], ast.Constant)
            found |= {
                item.value
                for item in ast.walk(node.args[1] if literal else tree)
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
            }
    return found & _FIELDS


def _names_of_arguments(tree: ast.AST) -> set[str]:
    """Return the names of the arguments in a module: by convention, by annotation, or in a request."""
    found = set(_ARGUMENTS)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and _words(node.annotation) & _CLASSES:
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and _words(node.annotation) & _CLASSES:
            found.add(_last_name(node.target))
        elif isinstance(node, ast.arg) and _REQUEST in _words(node.annotation):
            found.add("settings")
    return found


def _words(annotation: ast.expr | None) -> set[str]:
    """Return the names in an annotation, which may be a string."""
    if annotation is None:
        return set()
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    return set(str(text).replace("|", " ").split())


def _last_name(node: ast.expr) -> str:
    """Return ``x`` for ``x``, ``_x``, ``self.x`` and ``self.trainer._x``."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")
