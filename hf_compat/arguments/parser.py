"""``HfArgumentParser``: fields of dataclasses from command-line options or from a file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import types
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from packaging.version import Version

from hf_compat.arguments.problems import nearest_names
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.errors import ParserError, UnresolvedTypesError

# The argparse keywords for a dataclass field, by its type.


Options = tuple[tuple[str, ...], dict[str, Any]]
"""Names of an option, and keywords of ``add_argument``."""

_YES = frozenset({"yes", "true", "t", "y", "1"})
_NO = frozenset({"no", "false", "f", "n", "0"})


def string_to_bool(v: object) -> bool:
    """Return whether ``v`` says yes: a bool, or yes, true, t, y or 1 in any case; else it has to say no.

    Raises:
        ArgumentTypeError: If it says neither.
    """
    word = str(v).lower()
    if word not in _YES | _NO:
        raise ArgumentTypeError(f"{v!r} is not a bool: write true or false.")
    return word in _YES


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object: write it in braces.")
    return value


def _read_type(name: str, hint: object) -> object:
    """Return the type that command-line values are parsed as; an optional bool stays optional.

    Of a union it is the first type or, if that is None or (in a union without None) ``str``, the second; of an
    optional union of several types the second. transformers' own fields are declared in the order that suits this.

    Raises:
        ParserError: If it is a union of several types without ``str``.
    """
    if get_origin(hint) not in (Union, types.UnionType) or _is_switch(hint):
        return hint
    members = get_args(hint)
    is_optional = types.NoneType in members
    if str not in members and not (is_optional and len(members) == 2):
        raise ParserError(
            f"`{name}` has the type {hint}, which one value cannot be parsed as; use `X | None`, or add `str`."
        )
    first, second = members[:2]
    return first if second is (types.NoneType if is_optional else str) else second


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the keyword for a field whose option is not given: its default, or that it is required."""
    if field.default is not dataclasses.MISSING:
        return {"default": field.default}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory()}
    return {"required": True}


def _choice(field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    choices = get_args(kind) if get_origin(kind) is Literal else [member.value for member in kind]
    by_text = {str(choice): choice for choice in choices}
    return {"choices": choices, "type": lambda text: by_text.get(text, text), **_default(field)}


def _switch(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    given = _default(field)
    is_optional = kind is not bool
    if is_optional and given.get("default") is None:
        return {"type": string_to_bool}
    return {"type": string_to_bool, "default": False, "nargs": "?", "const": True, **_without(given, "required")}


def _without(keywords: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if key != name}


def _list(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    (item,) = get_args(kind) or (str,)
    given = _default(field)
    if field.default is not dataclasses.MISSING:
        given = {"default": None}  # a default that is not a list (an empty string, None) would become one item
    return {"type": item, "nargs": "+", **given}


def _dict(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    return {"type": _json_object, **_default(field)}


def _plain(field: dataclasses.Field[Any], kind: object) -> dict[str, Any]:
    return {"type": kind, **_default(field)}


def _is_choice(kind: object) -> bool:
    return get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def _is_switch(kind: object) -> bool:
    return kind is bool or bool(kind == bool | None)


def _is_a(base: type) -> Callable[[object], bool]:
    def check(kind: object) -> bool:
        origin = get_origin(kind) or kind
        return isinstance(origin, type) and issubclass(origin, base)

    return check


_KINDS: tuple[tuple[Callable[[object], bool], Callable[[dataclasses.Field[Any], Any], dict[str, Any]]], ...] = (
    (_is_choice, _choice),
    (_is_switch, _switch),
    (_is_a(list), _list),
    (_is_a(dict), _dict),
    (lambda kind: True, _plain),
)
"""A test for a type, and its argparse keywords; the first match is used."""


def options_of(field: dataclasses.Field[Any], hint: object) -> Iterator[Options]:
    """Yield the option of a field, then the one that turns it off if it is a bool with the default True.

    Args:
        field: The field; its metadata are additional keywords, with additional names in ``aliases``.
        hint: Its resolved type.

    Raises:
        ParserError: If the type is a union that one value cannot be parsed as.
    """
    kind = _read_type(field.name, hint)
    keywords = dict(field.metadata)
    aliases = keywords.pop("aliases", [])
    keywords_of = next(keywords_of for matches, keywords_of in _KINDS if matches(kind))
    names = _spellings(field.name)
    yield (*names, *([aliases] if isinstance(aliases, str) else aliases)), {**keywords, **keywords_of(field, kind)}
    if field.default is True and _is_switch(kind):
        negated = {**keywords, "action": "store_false", "dest": field.name, "default": False}
        yield (f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}"), negated


def _spellings(name: str) -> tuple[str, ...]:
    return (f"--{name}", f"--{name.replace('_', '-')}") if "_" in name else (f"--{name}",)


# Fields of `TrainingArguments` that give way, on a command line, to another dataclass's field of the same name.
#
# Only those that the release lacks: a script for that release may use their names for fields of its own.


_INIT: Any = dataclasses.Field.__dict__["init"]


class LibraryField(dataclasses.Field):  # type: ignore[type-arg]
    """A field of the library's arguments, which parsers skip where it gives way.

    transformers' ``HfArgumentParser`` has no hook for that, but reads of each field whether it is for the constructor,
    ``init``; the reader is found on the stack. For all others ``init`` is what it was declared as.
    """

    __slots__ = ("is_ours", "since", "until")

    is_ours: bool
    """Whether no release of transformers has it."""
    since: Version | None
    """The first release with it, of those that have been followed; None if 4.57 has it."""
    until: Version | None
    """The first release without it; 4.57 if that has never had it."""

    @property
    def init(self) -> bool:
        """Whether it is an argument of the constructor and, to a parser, of the command line."""
        return _is_declared(self) and not gives_way(self, _kinds_of_the_parser(sys._getframe(1)))

    @init.setter
    def init(self, value: bool) -> None:
        _INIT.__set__(self, value)

    @property
    def may_be_lacking(self) -> bool:
        """Whether some release lacks it."""
        return self.is_ours or self.since is not None or self.until is not None

    def is_of(self, release: Version) -> bool:
        """Return whether ``release``, or 4.57 if it is older, has it."""
        if self.is_ours or (self.since is not None and release < self.since):
            return False
        return self.until is None or release < self.until


def _kinds_of_the_parser(frame: FrameType | None) -> list[type[Any]]:
    """Return the dataclasses of the parser whose method runs in ``frame`` or called it; none if there is none."""
    for _ in range(2):  # the method, or a comprehension in it
        if frame is not None:
            kinds = getattr(frame.f_locals.get("self"), "dataclass_types", None)
            if kinds is not None:
                return list(kinds)
            frame = frame.f_back
    return []


def gives_way(field: dataclasses.Field[Any], kinds: Iterable[type[Any]]) -> bool:
    """Return whether ``field`` is the library's, the release lacks it, and another of the dataclasses has its name."""
    if not isinstance(field, LibraryField) or not field.may_be_lacking:
        return False
    is_taken = any(field.name in _names_of_options(other) for kind in kinds for other in dataclasses.fields(kind))
    return is_taken and not field.is_of(resolve_semantics().release)


def init_fields(kind: type[Any], kinds: Iterable[type[Any]]) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of ``kind`` that a parser of ``kinds`` reads."""
    for field in dataclasses.fields(kind):
        if _is_declared(field) and not gives_way(field, kinds):
            yield field


def _is_declared(field: dataclasses.Field[Any]) -> bool:
    """Return whether ``field`` is declared as an argument of the constructor, for any reader."""
    return bool(_INIT.__get__(field))


def _names_of_options(field: dataclasses.Field[Any]) -> set[str]:
    """Return the names of a field's options, with underscores; none of a field of the library."""
    if isinstance(field, LibraryField) or not _is_declared(field):
        return set()
    aliases = field.metadata.get("aliases", ())
    names = [aliases] if isinstance(aliases, str) else aliases
    turned_off = {f"no_{field.name}"} if field.default is True else set()
    return {field.name, *turned_off, *(name.lstrip("-").replace("-", "_") for name in names)}


_UNKNOWN_ARGUMENTS = " Remove them, or pass `return_remaining_strings=True`."
_UNKNOWN_KEYS = " Remove them, or pass `allow_extra_keys=True`."


def HfArg(  # noqa: N802  (upstream's name)
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,  # noqa: A002  (upstream's name)
    default: object = dataclasses.MISSING,
    default_factory: object = dataclasses.MISSING,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return a dataclass field with metadata for ``HfArgumentParser``.

    Args:
        aliases: Additional option names, such as ``"-e"``.
        help: Its text in ``--help``.
        default: Its default; without it the option is required.
        default_factory: Function that returns the default, for lists and dicts.
        metadata: Additional keywords of argparse's ``add_argument``.
        **kwargs: Additional keywords of ``dataclasses.field``.
    """
    given = {"aliases": aliases, "help": help}
    known = {**(metadata or {}), **{name: value for name, value in given.items() if value is not None}}
    field: Any = dataclasses.field
    return field(default=default, default_factory=default_factory, metadata=known, **kwargs)


class HfArgumentParser(ArgumentParser):
    """Parses command lines, dicts and files into instances of dataclasses.

    A field ``use_cache: bool = True`` becomes ``--use_cache [BOOL]``, ``--use-cache``, ``--no_use_cache`` and
    ``--no-use-cache``; a list takes several values, an Enum or a Literal one of its values, a dict a JSON object. A
    value of a union is parsed as the type beside None, or beside ``str``. A field's metadata are keywords of
    ``add_argument``, with additional option names in ``aliases``. A dataclass with ``_argument_group_name`` has its own
    group in ``--help``. A field of ``TrainingArguments`` that the installed transformers lacks is left out if another
    dataclass has an option of its name. Options added with ``add_argument`` are returned in a namespace after the
    instances.

    Args:
        dataclass_types: A dataclass, or several, in the order of the returned instances.
        **kwargs: Keywords of ``argparse.ArgumentParser``.

    Raises:
        ParserError: If a field's type is a union that one value cannot be parsed as.
        UnresolvedTypesError: If a type in an annotation cannot be resolved.
    """

    def __init__(self, dataclass_types: type[Any] | Iterable[type[Any]] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        given: Any = dataclass_types
        is_one = dataclasses.is_dataclass(given) or not isinstance(given, Iterable | None)
        self.dataclass_types: list[type[Any]] = [given] if is_one else list(given or ())
        for kind in self.dataclass_types:
            self._add_dataclass_arguments(kind)

    def _add_dataclass_arguments(self, dtype: type[Any]) -> None:
        target: Any = self
        if hasattr(dtype, "_argument_group_name"):
            target = self.add_argument_group(dtype._argument_group_name)
        try:
            types = get_type_hints(dtype)
        except NameError as error:
            raise UnresolvedTypesError(
                f"`{dtype.__name__}`: {error}. Define the types in its annotations at module level, not in a function."
            ) from error
        for field in init_fields(dtype, self.dataclass_types):
            for names, keywords in options_of(field, types[field.name]):
                target.add_argument(*names, **keywords)

    def _names(self, kind: type[Any]) -> list[str]:
        return [field.name for field in init_fields(kind, self.dataclass_types)]

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Return one instance of each dataclass, then a namespace if there are other options.

        Args:
            args: The command line. Default: ``sys.argv[1:]``.
            return_remaining_strings: Whether to return unknown arguments as a list at the end instead of raising.
            look_for_args_file: Whether to read the file with the script's name and the suffix ``.args``, if it exists.
                The command line takes precedence over it.
            args_filename: A file to read instead of the ``.args`` file.
            args_file_flag: An option for files to read, such as ``"--config"``; it may be repeated.

        Raises:
            ParserError: If the command line has unknown arguments.
            SystemExit: If a value cannot be parsed or a required option is missing.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        files = [Path(args_filename)] if args_filename else []
        if not files and look_for_args_file and sys.argv:
            files = [Path(sys.argv[0]).with_suffix(".args")]
        if args_file_flag:
            named, arguments = _take_file_options(arguments, args_file_flag)
            files += named
        from_files = [item for path in files if path.exists() for item in path.read_text(encoding="utf-8").split()]
        namespace, remaining = self.parse_known_args([*from_files, *arguments])
        found = [_take(kind, self._names(kind), namespace) for kind in self.dataclass_types]
        if vars(namespace):
            found.append(namespace)
        if return_remaining_strings:
            return (*found, remaining)
        if remaining:
            known = [name for action in self._actions for name in action.option_strings]
            flags = [item.partition("=")[0] for item in remaining if item.startswith("--")]
            raise ParserError(f"Unknown arguments: {remaining}.{nearest_names(flags, known) or _UNKNOWN_ARGUMENTS}")
        return tuple(found)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, from the values in ``args``.

        Args:
            args: Field to value.
            allow_extra_keys: Whether unknown keys are ignored instead of raising.

        Raises:
            ParserError: If a key is a field of none of the dataclasses.
        """
        found, extra = [], set(args)
        for kind in self.dataclass_types:
            given = {name: args[name] for name in self._names(kind) if name in args}
            extra -= given.keys()
            found.append(kind(**given))
        if extra and not allow_extra_keys:
            known = [name for kind in self.dataclass_types for name in self._names(kind)]
            raise ParserError(f"Unknown keys: {sorted(extra)}.{nearest_names(sorted(extra), known) or _UNKNOWN_KEYS}")
        return tuple(found)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, from the JSON object in ``json_file``.

        ``allow_extra_keys`` and errors are those of :meth:`parse_dict`.
        """
        return self.parse_dict(_read_json(json_file), allow_extra_keys=allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, from the YAML mapping in ``yaml_file``.

        ``allow_extra_keys`` and errors are those of :meth:`parse_dict`.
        """
        return self.parse_dict(_read_yaml(yaml_file), allow_extra_keys=allow_extra_keys)


def _take_file_options(arguments: list[str], flag: str) -> tuple[list[Path], list[str]]:
    """Return the files given with ``flag``, and the other arguments."""
    finder = ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(flag, action="append", default=[], dest="files")
    found, rest = finder.parse_known_args(arguments)
    return [Path(name) for name in found.files], rest


def _take(kind: type[Any], names: Iterable[str], namespace: Namespace) -> object:
    """Return an instance of ``kind``; its values, of ``names``, are removed from ``namespace``."""
    values = {name: getattr(namespace, name) for name in names}
    for name in values:
        delattr(namespace, name)
    return kind(**values)


def _mapping(value: object, path: str | os.PathLike[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParserError(
            f"`{os.fspath(path)}` contains a {type(value).__name__}: write a mapping of field names to values."
        )
    wrong = [name for name in value if not isinstance(name, str)]
    if wrong:
        raise ParserError(f"`{os.fspath(path)}` has the name {wrong[0]!r}, which is no text: put it in quotes.")
    return value


def _read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    return _mapping(json.loads(Path(path).read_text(encoding="utf-8")), path)


def _read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    import yaml

    return _mapping(yaml.safe_load(Path(path).read_text(encoding="utf-8")), path)


_READERS: dict[str, Callable[[str | os.PathLike[str]], dict[str, Any]]] = {
    ".json": _read_json,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}


_MOST_LEVELS = 100


def _levels(value: object, known: dict[int, float], depth: int = 0) -> float:
    """Return how many levels of dicts and lists are in ``value``; infinity if it contains itself, or has too many.

    Args:
        value: The value.
        known: The levels of those that have been looked at, by their ids; infinity of those that ``value`` is in.
        depth: How many it is in.
    """
    if not isinstance(value, dict | list):
        return 0
    if id(value) not in known and depth <= _MOST_LEVELS:
        known[id(value)] = math.inf
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + max((_levels(each, known, depth + 1) for each in inner), default=0)
    return known.get(id(value), math.inf)


def read_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields and their values in a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        ParserError: If the file has another suffix, cannot be read, or is not a mapping.
    """
    import yaml

    try:
        fields = _READERS[Path(path).suffix](path)
        for name, value in fields.items():
            if _levels(value, {}) > _MOST_LEVELS:
                raise ParserError(
                    f"`{os.fspath(path)}`: `{name}` contains itself, or is nested more than {_MOST_LEVELS} levels "
                    "deep, which no field is. Write out its value."
                )
        return fields
    except KeyError as error:
        problem = "has an unknown suffix" if os.path.exists(path) else "is no file"
        raise ParserError(f"`{os.fspath(path)}` {problem}: pass a file ending in {', '.join(_READERS)}.") from error
    except ParserError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # brackets in brackets exhaust the stack
        # The text of an OSError itself has the path once more.
        told = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ParserError(f"`{os.fspath(path)}` cannot be read: {told}") from error
