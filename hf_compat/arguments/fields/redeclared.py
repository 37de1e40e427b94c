"""Fields that a script's subclass of ``TrainingArguments`` declares anew, because its transformers release has none.

Such a field is the script's, not an old name of ours: its value is left alone, and the run uses ours at its default.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packaging.version import Version

from hf_compat.arguments.fields.defaults import defaults
from hf_compat.arguments.releases.fields import OWN_FIELDS, is_field_of

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["fields_of_the_script", "for_run", "keep_apart", "script_values_aside"]

_STORE = "_values_for_run"
"""Attribute with the run's value of each field that is the script's."""


def fields_of_the_script(kind: type[TrainingArguments], release: Version) -> frozenset[str]:
    """Return the fields of ours that ``release`` lacks and a class of the script, ``kind`` or a base, declares."""
    declared = {
        name
        for base in inspect.getmro(kind)
        if not base.__module__.startswith("hf_compat.")
        for name in inspect.get_annotations(base)
    }
    return frozenset(name for name in declared & defaults().keys() - OWN_FIELDS if not is_field_of(name, release))


@contextmanager
def script_values_aside(args: TrainingArguments, release: Version) -> Iterator[None]:
    """In the block ``args`` have the run's values of the fields that are the script's.

    Afterwards the script's values are back, and the run's are kept for :func:`for_run`.
    """
    names = fields_of_the_script(type(args), release) | vars(args).get(_STORE, {}).keys()
    if not names:
        yield
        return
    theirs = {name: getattr(args, name) for name in names}
    vars(args).update({name: vars(args).get(_STORE, {}).get(name, defaults()[name]) for name in names})
    try:
        yield
    finally:
        vars(args)[_STORE] = {name: getattr(args, name) for name in names}
        vars(args).update(theirs)


def keep_apart(args: TrainingArguments, name: str, value: object) -> None:
    """Set the field ``name`` of ``args`` to a script's ``value`` of that name; the run uses the value it has now."""
    vars(args).setdefault(_STORE, {})[name] = getattr(args, name)
    setattr(args, name, value)


def for_run(args: TrainingArguments) -> TrainingArguments:
    """Return ``args`` as a run reads them: with its own values of fields that are the script's."""
    if _STORE not in args.__dict__:  # nearly always, and at every batch
        return args
    ours = vars(args)[_STORE]
    if not ours:
        return args
    seen = copy.copy(args)
    vars(seen).update(ours)
    return seen
