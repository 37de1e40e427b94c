"""The variables of ``fabric run``, which say what keywords of ``lightning.Trainer`` say.

``lightning.Trainer`` itself does not read them, Fabric does; a script that ``fabric run`` has started means them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hf_compat.engine.keywords import precision_meant
from hf_compat.errors import ArgumentsError, TrainerSetupError

__all__ = ["FABRIC_VARIABLES", "named", "naming_variables", "with_fabric_variables"]

FABRIC_VARIABLES: dict[str, str] = {
    "LT_ACCELERATOR": "accelerator",
    "LT_STRATEGY": "strategy",
    "LT_DEVICES": "devices",
    "LT_NUM_NODES": "num_nodes",
    "LT_PRECISION": "precision",
}
"""Variable → the keyword that it stands for."""


def _given() -> dict[str, str]:
    """Return the variables that are set."""
    return {name: os.environ[name] for name in FABRIC_VARIABLES if os.environ.get(name)}


def with_fabric_variables(keywords: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the user's ``keywords`` with those that variables say, and what contradicts one.

    Args:
        keywords: The user's keywords of ``lightning.Trainer``.
    """
    meant, problems = dict(keywords or {}), list[str]()
    for variable, value in _given().items():
        keyword = FABRIC_VARIABLES[variable]
        if keyword == "num_nodes" and not value.isdigit():
            problems.append(f"`{variable}={value}` is not a valid number of nodes. Set it to an integer, or unset it.")
        elif meant.get(keyword) in (None, "auto"):
            meant[keyword] = int(value) if keyword == "num_nodes" else value
        elif not _is_same(keyword, meant[keyword], value):
            problems.append(
                f"`lightning={{{keyword!r}: {meant[keyword]!r}}}` contradicts `{variable}={value}`, which `fabric run` "
                f"sets for `--{keyword}`. Remove one of them."
            )
    return meant, problems


def _is_same(keyword: str, given: object, value: str) -> bool:
    if keyword != "precision":
        return str(given) == value
    try:
        return precision_meant(given) == precision_meant(value)
    except TrainerSetupError:
        return str(given) == value


def named(problem: str) -> str:
    """Return ``problem``, an error message, with the variables that say what it says of keywords."""
    told = []
    for variable, value in _given().items():
        keyword = FABRIC_VARIABLES[variable]
        if any(word in problem for word in (f"'{keyword}'", f"`{keyword}`", f"`{value}`")) and variable not in problem:
            told.append(f"{keyword!r} is `{variable}={value}`")
    return f"{problem} (`fabric run`: {', '.join(told)}.)" if told else problem


@contextmanager
def naming_variables() -> Iterator[None]:
    """Context, or decorator, in which errors about keywords name the variables that stand for them."""
    try:
        yield
    except TrainerSetupError as error:
        if named(str(error)) == str(error):
            raise
        raise type(error)(named(str(error))) from error.__cause__
    except ArgumentsError as error:
        precision = _given().get("LT_PRECISION")
        if precision is None or not {"bf16", "fp16"} & {*error.fields}:
            raise
        note = f"`fabric run` has set `LT_PRECISION={precision}`: start the script without `--precision`."
        raise type(error)([*error.problems, note], fields=error.fields) from error.__cause__
