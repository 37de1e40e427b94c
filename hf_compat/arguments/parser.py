"""``HfArgumentParser``: the fields of dataclasses as options of a command line, or as keys of a file."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from hf_compat.arguments.fields.types import options_of
from hf_compat.arguments.fields.unknown import nearest_names
from hf_compat.errors import ParserError, UnresolvedTypesError

__all__ = ["HfArg", "HfArgumentParser", "read_fields"]


def HfArg(  # noqa: N802  (upstream's name)
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,  # noqa: A002  (upstream's name)
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return a field of a dataclass that ``HfArgumentParser`` reads.

    Args:
        aliases: Further options for the field, such as ``"-e"``.
        help: What ``--help`` says of it.
        default: Its default; without one the option is required.
        default_factory: Called for a default, for lists and dicts.
        metadata: Further keywords of argparse's ``add_argument``.
        **kwargs: Further keywords of ``dataclasses.field``.
    """
    given = {"aliases": aliases, "help": help}
    known = {**(metadata or {}), **{name: value for name, value in given.items() if value is not None}}
    field: Any = dataclasses.field
    return field(default=default, default_factory=default_factory, metadata=known, **kwargs)


class HfArgumentParser(ArgumentParser):
    """Makes options of the fields of dataclasses, and instances of what was parsed.

    A field ``use_cache: bool = True`` becomes ``--use_cache [BOOL]``, ``--use-cache``, ``--no_use_cache`` and
    ``--no-use-cache``; a list takes several values, an Enum or a Literal one of its values, a dict a JSON object. Of a
    union one type is read: the one beside None, or beside ``str``. A field's metadata are keywords of ``add_argument``,
    and ``aliases`` further options. A dataclass with ``_argument_group_name`` gets a group of its own in ``--help``.
    Options added with ``add_argument`` come back in a namespace behind the instances.

    Args:
        dataclass_types: A dataclass, or several in the order in which their instances are returned.
        **kwargs: Keywords of ``argparse.ArgumentParser``.

    Raises:
        ParserError: If a field's type is a union that no single value can be read for.
        UnresolvedTypesError: If an annotation names what cannot be found.
    """

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        is_one = dataclasses.is_dataclass(dataclass_types) or not isinstance(dataclass_types, Iterable | None)
        self.dataclass_types: list[Any] = [dataclass_types] if is_one else list(dataclass_types or ())
        for kind in self.dataclass_types:
            self._add_dataclass_arguments(kind)

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        target: Any = self
        if hasattr(dtype, "_argument_group_name"):
            target = self.add_argument_group(dtype._argument_group_name)
        try:
            types = get_type_hints(dtype)
        except NameError as error:
            raise UnresolvedTypesError(
                f"`{dtype.__name__}`: {error}. Declare what its annotations name in its module, not in a function."
            ) from error
        for field in dataclasses.fields(dtype):
            if field.init:
                for names, keywords in options_of(field, types[field.name]):
                    target.add_argument(*names, **keywords)

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Return one instance of each dataclass, then a namespace of other options if there are any.

        Args:
            args: The command line. Default: that of the process.
            return_remaining_strings: Whether to return what is no option as a last item, a list, not to refuse it.
            look_for_args_file: Whether to read a file named as the script, but ending in ``.args``, if there is one.
                Its words come before the command line, which wins.
            args_filename: A file to read instead of that one.
            args_file_flag: An option, such as ``"--config"``, that names files to read; it may be repeated.

        Raises:
            ParserError: If something is left that no option takes.
            SystemExit: If a value cannot be read or a required option is missing.
        """
        words = list(sys.argv[1:] if args is None else args)
        files = [Path(args_filename)] if args_filename else []
        if not files and look_for_args_file and sys.argv:
            files = [Path(sys.argv[0]).with_suffix(".args")]
        if args_file_flag:
            named, words = _files_named_in(words, args_file_flag)
            files += named
        from_files = [word for path in files if path.exists() for word in path.read_text(encoding="utf-8").split()]
        namespace, remaining = self.parse_known_args([*from_files, *words])
        found = [_take(kind, namespace) for kind in self.dataclass_types]
        if vars(namespace):
            found.append(namespace)
        if return_remaining_strings:
            return (*found, remaining)
        if remaining:
            known = [name for action in self._actions for name in action.option_strings]
            flags = [word.partition("=")[0] for word in remaining if word.startswith("--")]
            raise ParserError(f"The command line holds what no option takes: {remaining}.{nearest_names(flags, known)}")
        return tuple(found)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, made of the values in ``args``.

        Args:
            args: Field to value.
            allow_extra_keys: Whether keys that are no field are left out, not refused.

        Raises:
            ParserError: If there is a key that is no field of any of the dataclasses.
        """
        found, extra = [], set(args)
        for kind in self.dataclass_types:
            given = {name: args[name] for name in _names(kind) if name in args}
            extra -= given.keys()
            found.append(kind(**given))
        if extra and not allow_extra_keys:
            known = [name for kind in self.dataclass_types for name in _names(kind)]
            raise ParserError(f"These keys are no fields: {sorted(extra)}.{nearest_names(sorted(extra), known)}")
        return tuple(found)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, made of the JSON object in a file; as ``parse_dict``."""
        return self.parse_dict(_read_json(json_file), allow_extra_keys=allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return one instance of each dataclass, made of the YAML mapping in a file; as ``parse_dict``."""
        return self.parse_dict(_read_yaml(yaml_file), allow_extra_keys=allow_extra_keys)


def _files_named_in(words: list[str], flag: str) -> tuple[list[Path], list[str]]:
    """Return the files that ``flag`` names, and the words without them."""
    finder = ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(flag, action="append", default=[], dest="files")
    found, rest = finder.parse_known_args(words)
    return [Path(name) for name in found.files], rest


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _take(kind: Any, namespace: Namespace) -> Any:
    """Return an instance of ``kind``; its values are taken out of ``namespace``."""
    values = {name: getattr(namespace, name) for name in _names(kind)}
    for name in values:
        delattr(namespace, name)
    return kind(**values)


def _mapping(value: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParserError(f"`{os.fspath(path)}` holds a {type(value).__name__}, not field names and their values.")
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


def read_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields and values in a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        ParserError: If the file ends in something else, cannot be read, or holds no names and values.
    """
    try:
        return _READERS[Path(path).suffix](path)
    except KeyError as error:
        raise ParserError(f"`{os.fspath(path)}`: pass a file ending in {', '.join(_READERS)}.") from error
    except (OSError, ValueError) as error:
        raise ParserError(f"`{os.fspath(path)}` cannot be read: {error}") from error
