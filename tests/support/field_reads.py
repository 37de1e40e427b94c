"""Which fields of ``TrainingArguments`` a module reads, found in its syntax tree."""

import ast

from hf_compat.arguments import FIELD_RULES

FIELDS = {rule.field for rule in FIELD_RULES}
ARGUMENTS = {"args", "training_args", "arguments"}
"""What variables and attributes that hold the arguments are called."""
KINDS = {"TrainingArguments", "Seq2SeqTrainingArguments", "OptimizerSettings"}
"""Their class, and the protocol of the fields that optimizers are built from."""
REQUEST = "OptimizerRequest"
"""Hands optimizers their fields as its ``settings``."""


def _words(node):
    """Return the names in an annotation, which may be a string."""
    if node is None:
        return set()
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    return set(str(text).replace("|", " ").split())


def _last_name(node):
    """Return ``x`` for ``x``, ``_x``, ``self.x`` and ``self.host._x``."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")


def names_of_arguments(tree):
    """Return what the arguments are called in a module: by convention, by annotation, or in a request."""
    found = set(ARGUMENTS)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and _words(node.annotation) & KINDS:
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and _words(node.annotation) & KINDS:
            found.add(_last_name(node.target))
        elif isinstance(node, ast.arg) and REQUEST in _words(node.annotation):
            found.add("settings")
    return found


def fields_read(tree, *more_names):
    """Return the fields that a module reads off the arguments, or off variables among ``more_names``.

    Where it reads names out of a table with ``getattr``, they are all its string constants that are fields.
    """
    names, found = names_of_arguments(tree) | set(more_names), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _last_name(node.value) in names:
            found.add(node.attr)
        elif isinstance(node, ast.Call) and _last_name(node.func) == "getattr" and _last_name(node.args[0]) in names:
            literal = isinstance(node.args[1], ast.Constant)
            found |= {
                item.value for item in ast.walk(node.args[1] if literal else tree) if isinstance(item, ast.Constant)
            }
    return found & FIELDS
