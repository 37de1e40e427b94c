"""Converts transformers' ``TrainingArguments`` into ours, without importing transformers."""

from __future__ import annotations

import dataclasses
import inspect
import warnings

from hf_compat.arguments.fields import DeclaredField, declared
from hf_compat.arguments.releases import keep_apart
from hf_compat.arguments.training_arguments import Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.errors import ArgumentTypesError, described

_KINDS: dict[str, type[TrainingArguments]] = {
    "Seq2SeqTrainingArguments": Seq2SeqTrainingArguments,
    "TrainingArguments": TrainingArguments,
}
_BACKEND_STATE = (
    "deepspeed_plugin",
    "distributed_state",
    "fsdp_plugin_args",
    "hf_deepspeed_config",
    "xla_fsdp_config",
)
"""Attributes for accelerate, which are not copied."""


def _kind_of(args: object) -> type[TrainingArguments] | None:
    if not dataclasses.is_dataclass(args):
        return None
    return next((_KINDS[base.__name__] for base in inspect.getmro(type(args)) if base.__name__ in _KINDS), None)


def _fields_of_transformers(args: object) -> set[str]:
    """Return the fields of transformers' own class, without those of a script's subclass."""
    own = next(base for base in inspect.getmro(type(args)) if base.__name__ in _KINDS)
    return {item.name for item in dataclasses.fields(own)}


def from_transformers(args: object) -> TrainingArguments:
    """Return ``args`` if they are ours, else an instance of ours with the same values.

    Fields of a subclass and attributes set after construction are kept as plain attributes.

    Raises:
        ArgumentsError: If ``args`` are not training arguments, or have values that are not supported.
    """
    if isinstance(args, TrainingArguments) and TrainingArguments in inspect.getmro(type(args)):
        return args  # `isinstance` alone is true of transformers' as well
    kind = _kind_of(args)
    if kind is None:
        found = f"the class {args.__name__}" if isinstance(args, type) else described(args)
        raise ArgumentTypesError([f"`args` is {found}: pass an instance of `TrainingArguments`."])
    ours = declared(kind)
    known = {name for name, item in ours.items() if item.init}
    given = {name: getattr(args, name) for name in known & _fields_of_transformers(args)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers warned when ``args`` were made
        converted = kind(**{name: value for name, value in given.items() if not _is_default(ours[name], value)})
    for name, value in vars(args).items():
        if name in known - given.keys():
            keep_apart(converted, name, value)
        elif name not in known and name not in _BACKEND_STATE and not name.startswith("_"):
            setattr(converted, name, value)
    converted._n_gpu = vars(args).get("_n_gpu", -1)  # which scripts set to 1 to use one GPU
    return converted


def _is_default(field: DeclaredField, value: object) -> bool:
    default = field.default_value
    return value is default or (type(value) is type(default) and value == default)
