"""Explains the effect of training arguments, of a file, a script's command line or all fields."""

from __future__ import annotations

import ast
import difflib
import json
import warnings
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from hf_compat.arguments import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.arguments.fields import Effect, declared
from hf_compat.arguments.parser import read_fields
from hf_compat.errors import ArgumentsError, ParserError
from hf_compat.masking import is_secret_name, masked_text, masked_value

_EFFECTS = {name: item.effect for name, item in declared(Seq2SeqTrainingArguments).items()}
_DEFAULTS = {name: item.default_value for name, item in declared(TrainingArguments).items()}
_SETTABLE = {item.name for item in fields(Seq2SeqTrainingArguments) if item.init}
_PLACES: dict[str, Callable[[str], str]] = {
    "trainer": lambda target: f"lightning.Trainer({target}=...)",
    "plan": lambda target: f"hf_compat/{target}",
    "script": lambda target: "scripts",
    "alias": lambda target: f"{target}=...",
    "unsupported": lambda target: "not supported",
}
_MIN_SIMILARITY = 0.75
"""Similarity, 0 to 1, from which an unknown name may be a misspelt field; some are options of a script's own."""
_MISSPELT = 0.9
"""Similarity, 0 to 1, from which it is taken for one."""
_HEADINGS = ("field", "value", "where", "effect")
_MAX_VALUE_WIDTH = 40

_ARGUMENTS = {"args", "training_args", "arguments"}
"""Names of variables and attributes that hold the arguments."""
_CLASSES = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_REQUEST = "OptimizerRequest"
"""The class that hands optimizers their fields as its ``settings``."""
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The effect of one field."""

    field: str
    value: object
    """The given value, or the default; tokens are masked."""
    handling: str
    """As in ``Effect``; ``"unknown"`` if it is not a field."""
    where: str
    """The keyword of ``lightning.Trainer``, our module, the new name, or who reads it."""
    effect: str
    """Its effect, or the reason and the remedy if it is not supported."""
    problems: tuple[str, ...] = ()
    """Why this value is invalid or not supported; empty if it is accepted."""
    read_in: tuple[str, ...] = ()
    """Every module of ours that reads it off the arguments, besides those that check and complete them."""


def explain_all() -> list[Explanation]:
    """Return the effect of every field with its default, in the order of declaration."""
    return [_explain(name, _DEFAULTS.get(name)) for name in _EFFECTS]


def explain_fields(fields: Mapping[str, Any]) -> list[Explanation]:
    """Return the effect of ``fields``, and the problems of their values.

    A problem of a field that is not in ``fields``, perhaps set by the environment, has its own row. An unknown name is
    not a problem, but may get a suggestion: scripts have their own arguments in the same file.
    """
    explained = {name: _explain(name, value) for name, value in fields.items()}
    for name, problem in _problems({name: value for name, value in fields.items() if name in _SETTABLE}):
        row = explained.get(name) or _explain(name, _DEFAULTS[name])
        secrets = [value for field, value in fields.items() if is_secret_name(field) and isinstance(value, str)]
        explained[name] = replace(row, problems=(*row.problems, masked_text(problem, secrets)))
    return list(explained.values())


def explain_call(literals: Mapping[str, Any], computed: Mapping[str, str]) -> list[Explanation]:
    """Return the effect of the keywords in a call of ``TrainingArguments`` that a script makes.

    Args:
        literals: Those whose values are known.
        computed: Those whose values the script computes, with its expressions. If there are any, a value is checked
            only for a field that is not supported: with the others it may well be right.
    """
    if not computed:
        return explain_fields(literals)
    known = [
        row
        for name, value in literals.items()
        for row in (explain_fields({name: value}) if _handling_of(name) == "unsupported" else [_explain(name, value)])
    ]
    return known + [_explain(name, _Expression(text)) for name, text in computed.items()]


def _handling_of(name: str) -> str | None:
    return _EFFECTS[name].handling if name in _EFFECTS else None


class _Expression(str):
    """The text of an expression, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain_command_line(arguments: Sequence[str]) -> list[Explanation]:
    """Return the effect of the arguments on a command line, without running its script.

    Args:
        arguments: A ``.json``, ``.yaml`` or ``.yml`` file of fields; or a script and such a file, or its options.
            The file with the script's name and the suffix ``.args`` is read too.

    Raises:
        ParserError: If a file or the value of an option cannot be parsed.
    """
    first, *rest = arguments
    if Path(first).suffix != ".py":
        return explain_fields(read_fields(first))
    if not Path(first).is_file():
        raise ParserError(f"`{first}` does not exist; pass a script or a file of fields.")
    if len(rest) == 1 and not rest[0].startswith("-"):
        return explain_fields(read_fields(rest[0]))
    return explain_fields(_given_fields([*_words_in(Path(first).with_suffix(".args")), *rest]))


def _words_in(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split() if file.exists() else []
    except (OSError, ValueError) as error:
        raise ParserError(f"`{file}` cannot be read: {error}") from error


def _given_fields(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the fields set by options, and other options with their values."""
    parser = HfArgumentParser(Seq2SeqTrainingArguments, allow_abbrev=False, add_help=False, exit_on_error=False)
    for action in parser._actions:
        action.default = SUPPRESS
    try:
        namespace, rest = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise ParserError(str(error)) from error
    return {**vars(namespace), **_own_options(rest)}


def _own_options(arguments: Iterable[str]) -> dict[str, str]:
    own: dict[str, list[str]] = {}
    values: list[str] = []  # arguments before the first option belong to none
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            values = own.setdefault(name.removeprefix("--"), [])
            argument = value if equals else ""
        if argument:
            values.append(argument)
    return {name: " ".join(values) for name, values in own.items()}


def _problems(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the field and the text of every problem of ``fields``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its row says that a name is deprecated
            Seq2SeqTrainingArguments(**fields)
    except ArgumentsError as error:
        yield from zip(error.fields, error.problems, strict=True)
    except (AttributeError, TypeError, ValueError):
        found = list(_unusable(fields))
        if not found:  # no value alone, so perhaps a fault of hf_compat
            raise
        yield from found


def _unusable(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the field and the text of every problem that a value is alone, those of impossible types included."""
    for name, value in fields.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Seq2SeqTrainingArguments(**{name: value})
        except ArgumentsError as error:
            yield from zip(error.fields, error.problems, strict=True)
        except (AttributeError, TypeError, ValueError) as error:
            yield name, f"`{name}={value!r}` is of no type that can be used: {error}"


def _explain(name: str, value: object) -> Explanation:
    shown = masked_value(name, _plain(value))
    effect = _EFFECTS.get(name)
    if effect is None:
        near = _nearest(name, _MIN_SIMILARITY)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        return Explanation(name, shown, "unknown", "the script", f"Not a field of TrainingArguments.{hint}")
    modules = tuple(f"hf_compat/{file}" for file in readers_of(name))
    return Explanation(name, shown, effect.handling, _place(effect), effect.sentence, read_in=modules)


def _nearest(name: str, similarity: float) -> list[str]:
    return difflib.get_close_matches(name.replace("-", "_"), _SETTABLE, n=1, cutoff=similarity)


def is_misspelt(item: Explanation) -> bool:
    """Return whether the name is no field's, but so near to one that it is hardly an option of the script's own."""
    return item.handling == "unknown" and bool(_nearest(item.field, _MISSPELT))


def _place(effect: Effect) -> str:
    return _PLACES[effect.handling](effect.target)


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def as_table(explained: Sequence[Explanation], *, readers: bool = True) -> str:
    """Return an aligned table of ``explained``: a line each, one for each problem, and one for further ``readers``."""
    rows = [_HEADINGS, *((item.field, _short(item.value), item.where, item.effect) for item in explained)]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = []
    for row, item in zip(rows, [None, *explained], strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]))
        lines.extend(_notes(item, readers) if item else ())
    return "\n".join(lines)


def _notes(item: Explanation, readers: bool) -> Iterator[str]:
    others = [module for module in item.read_in if module != item.where]
    if others and readers:
        yield f"  {'also ' if item.handling == 'plan' else ''}read in: {', '.join(others)}"
    yield from (f"  error: {problem}" for problem in item.problems)


def _short(value: object) -> str:
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in repr(value))
    return text if len(text) <= _MAX_VALUE_WIDTH else f"{text[: _MAX_VALUE_WIDTH - 3]}..."


def as_json(explained: Sequence[Explanation]) -> str:
    """Return ``explained`` as a JSON list of objects with the fields of ``Explanation``."""
    return json.dumps([asdict(item) for item in explained], indent=2, default=str)


def as_markdown(explained: Sequence[Explanation]) -> str:
    """Return ``explained`` as a Markdown table without values."""
    rows = ["| field | where | effect |", "|---|---|---|"]
    rows += [f"| `{item.field}` | {_code(item)} | {item.effect} |" for item in explained]
    return "\n".join(rows)


def _code(item: Explanation) -> str:
    return item.where if item.handling in ("script", "unsupported", "unknown") else f"`{item.where}`"


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
    return found & _EFFECTS.keys()


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
