"""``HfArgumentParser``: fields of dataclasses from command-line options or from a file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from hf_compat.arguments.fields.field_conflicts import init_fields
from hf_compat.arguments.fields.types import options_of
from hf_compat.arguments.fields.unknown import nearest_names
from hf_compat.errors import ParserError, UnresolvedTypesError

__all__ = ["HfArg", "HfArgumentParser", "read_fields"]

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
        raise ParserError(
            f"`{os.fspath(path)}` has an unknown suffix: pass a file ending in {', '.join(_READERS)}."
        ) from error
    except ParserError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # brackets in brackets exhaust the stack
        raise ParserError(f"`{os.fspath(path)}` cannot be read: {' '.join(str(error).split())}") from error
